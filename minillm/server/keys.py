"""Whether a request may come in: the API key in its header, and the name by which it calls the server."""

import hmac


def is_authorized(header: bytes, key: str) -> bool:
    """Whether `header`, the bytes of an Authorization header (b"" where there was none), brings `key`.

    It does as `Bearer KEY`; the word is HTTP's, in any case. The key may have spaces around it. The comparison takes
    as long for a wrong key that begins rightly as for any other: its time must not say how much of it was right.
    """
    scheme, _, given = header.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def called_name(header: bytes) -> str:
    """The name in `header`, the bytes of a Host header: without its port, in lower case."""
    name = header.decode("latin-1").strip().lower()
    if name.startswith("["):  # an address of IPv6, which has colons of its own
        return name[1:].partition("]")[0]
    return name.partition(":")[0]
