"""Whether a request may come in: the API key in its header, and the name by which it calls the server."""

import hmac
import ipaddress
from collections.abc import Collection


def is_authorized(header: bytes, key: str) -> bool:
    """Whether `header`, the bytes of an Authorization header (b"" where there was none), brings `key`.

    It does as `Bearer KEY`; the word is HTTP's, in any case. The key may have spaces around it. The comparison takes
    as long for a wrong key that begins rightly as for any other: its time must not say how much of it was right.
    """
    scheme, _, given = header.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())


def called_name(header: bytes) -> str:
    """The name in `header`, the bytes of a Host header: without its port, in lower case."""
    name = header.decode("latin-1").strip().lower().removesuffix(".")
    if name.startswith("["):  # an address of IPv6, which has colons of its own
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def may_be_called(name: str, names: Collection[str]) -> bool:
    """Whether a request that calls the server `name` may come in, where it has these names and no key.

    A page of another site that has its own name lead here (DNS rebinding) cannot help saying that name. An address is
    nobody's own, and who says no name at all is no browser.
    """
    if name in ("", "localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
