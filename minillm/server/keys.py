"""Whether a request may come in: the API key in its header."""

import hmac


def is_authorized(header: bytes, key: str) -> bool:
    """Whether `header`, the bytes of an Authorization header (b"" where there was none), brings `key`.

    It does as `Bearer KEY`; the word is HTTP's, in any case. The key may have spaces around it. The comparison takes
    as long for a wrong key that begins rightly as for any other: its time must not say how much of it was right.
    """
    scheme, _, given = header.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())
