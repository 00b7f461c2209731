"""What a server allows, and for how long."""

from dataclasses import dataclass

from minillm.errors import InputError

MAX_BODY_BYTES = 4 * 2**20
"""A context of 8,192 tokens is some 40 kB of text; the rest is for token ids, tools, and many prompts in one body."""

MAX_WAITING = 256
TIMEOUT_S = 600.0
GRACE_S = 30.0


@dataclass(frozen=True)
class Settings:
    """api_key: what clients must send, None: nothing. allow_origins: web pages whose scripts may call, by origin.
    hosts: names by which the server may be called besides localhost and addresses, None: any.

    max_body_bytes: of a request. max_waiting: choices that may wait for those that run. timeout_s: for a request, from
    its arrival to the last byte of its answer. grace_s: for the requests that run when the server is told to end.
    """

    api_key: str | None = None
    allow_origins: tuple[str, ...] = ()
    hosts: frozenset[str] | None = None
    max_body_bytes: int = MAX_BODY_BYTES
    max_waiting: int = MAX_WAITING
    timeout_s: float = TIMEOUT_S
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        key = self.api_key
        if key is not None and not (key and key.isascii() and key.isprintable() and key.strip() == key):
            raise InputError(
                "the API key must be some printable ASCII characters, without spaces around them: it travels in an HTTP"
                " header"
            )
        if self.max_body_bytes < 1:
            raise InputError(f"--max-body-bytes must be at least 1, not {self.max_body_bytes}")
        if self.max_waiting < 0:
            raise InputError(f"--max-waiting must be at least 0, not {self.max_waiting}")
        if not 0 < self.timeout_s < float("inf"):
            raise InputError(f"--timeout must be a number of seconds above 0, not {self.timeout_s}")
        if not 0 <= self.grace_s < float("inf"):
            raise InputError(f"--grace must be a number of seconds, not {self.grace_s}")
