"""17.6: headers, right and wrong. Whoever is let in without a call of `compare_digest` was compared otherwise."""

import hashlib
import hmac
import re
import secrets
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

_RIGHTLY = "by compare_digest, or not at all"


def _watched(f: Function, header: bytes, key: str) -> tuple[Any, bool]:
    """The result, and whether compare_digest was called for it, by whatever name the reader has for it."""
    called = []

    def watch(frame: FrameType, event: str, called_one: Any) -> None:
        if event == "c_call" and getattr(called_one, "__name__", "").endswith("compare_digest"):
            called.append(called_one)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        result = f(header, key)
    finally:
        sys.setprofile(before)
    return result, bool(called)


def _knock(header: bytes, want: bool, key: str = "s3cret") -> Case:
    def observe(f: Function) -> Observation:
        result, digested = _watched(f, header, key)
        told = result if isinstance(result, bool) else f"{in_words(result)}: not True or False"
        return {
            "the result": told,
            "the key is compared": _RIGHTLY if digested or not result else "by something else",
        }

    wanted = {"the result": want, "the key is compared": _RIGHTLY}
    return Case(f"header {header!r}, key {key!r}", observe, lambda: wanted)


def _letting_in(
    *,
    scheme: Callable[[bytes], bool] = lambda word: word.lower() == b"bearer",
    cut: Callable[[bytes], tuple[bytes, bytes]] = lambda header: (header.partition(b" ")[0], header.partition(b" ")[2]),
    given: Callable[[bytes], bytes] = lambda given: given.strip(),
    same: Callable[[bytes, str], Any] = lambda given, key: hmac.compare_digest(given, key.encode()),
) -> Function:
    def is_authorized(header: bytes, key: str) -> Any:
        word, rest = cut(header)
        return scheme(word) and same(given(rest), key)

    return is_authorized


def _as_text(given: bytes, key: str) -> bool:
    return hmac.compare_digest(given.decode("latin-1"), key)


def _both_whole(header: bytes, key: str) -> bool:
    """The word made small, and the whole compared."""
    word, rest = header[:7].lower(), header[7:].strip(b" ")
    return hmac.compare_digest(word + rest, b"bearer " + key.encode())


def _step_by_step(header: bytes, key: str) -> bool:
    parts = header.split(maxsplit=1)
    if len(parts) < 2 or parts[0].upper() != b"BEARER" or header[:1].isspace():
        return False
    return hmac.compare_digest(key.encode("ascii"), parts[1].strip())


def _without_a_space(header: bytes, key: str) -> bool:
    return header[:6].lower() == b"bearer" and hmac.compare_digest(header[6:].strip(), key.encode())


def _anywhere(header: bytes, key: str) -> bool:
    return key.encode() in header


def _unpacking(header: bytes, key: str) -> bool:
    scheme, given = header.split(b" ", 1)
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), key.encode())


def _one_space(text: bytes) -> bytes:
    return b" ".join(text.split())


def _no_space(text: bytes) -> bytes:
    return b"".join(text.split())


def _by_pattern(header: bytes, key: str) -> bool:
    found = re.fullmatch(rb"(?is)bearer +(.*?) *", header)
    return found is not None and hmac.compare_digest(found[1], key.encode())


def _by_their_hashes(header: bytes, key: str) -> bool:
    """Of one length, whatever was given; and the key is looked at first."""
    scheme, _, given = header.partition(b" ")
    same = secrets.compare_digest(hashlib.sha256(given.strip()).digest(), hashlib.sha256(key.encode()).digest())
    return same and scheme.lower() == b"bearer"


IS_AUTHORIZED = Grader(
    cases=[
        _knock(b"Bearer s3cret", True),
        _knock(b"bearer s3cret", True),
        _knock(b"BEARER s3cret", True),
        _knock(b"Bearer   s3cret ", True),
        _knock(b"Bearer my own key", True, key="my own key"),
        _knock(b"", False),
        _knock(b"Bearer", False),
        _knock(b"Bearer ", False),
        _knock(b"s3cret", False),
        _knock(b"Basic s3cret", False),
        _knock(b"Token s3cret", False),
        _knock(b"Bearer s3cre", False),
        _knock(b"Bearer s3cret2", False),
        _knock(b"Bearer no s3cret", False),
        _knock(b"Bearer S3CRET", False),
        _knock(b"Bearer \xe9\xff", False),
        _knock(b"Bearer my", False, key="my own key"),
        _knock(b"Bearers3cret", False),
        _knock(b"Bearer s3c\xffret", False),
        _knock(b"Bearer two  spaces", True, key="two  spaces"),
        _knock(b"Bearer two spaces", False, key="two  spaces"),
        _knock(b"Bearer twospaces", False, key="two  spaces"),
    ],
    mutants=[
        Mutant(
            _letting_in(same=lambda given, key: given == key.encode()),
            "You compare by == or the like, which ends at the first difference. How long it takes says how much of a"
            " wrong key was right: hmac.compare_digest.",
        ),
        Mutant(
            _letting_in(scheme=lambda word: word == b"Bearer"),
            "You want the word exactly so. Its letters may be small or capital: HTTP's schemes are the same in any"
            " case.",
        ),
        Mutant(
            _letting_in(scheme=lambda word: True),
            "You do not look at the word before the key. `Basic` says that something else follows.",
        ),
        Mutant(
            _letting_in(given=lambda given: given),
            "You compare with the spaces around the key. Take them off first.",
        ),
        Mutant(
            _letting_in(
                given=lambda given: given.strip().lower(), same=lambda g, k: hmac.compare_digest(g, k.lower().encode())
            ),
            "You take small and capital letters of the key for the same. Only the word before it has that freedom.",
        ),
        Mutant(
            _letting_in(same=lambda given, key: given.startswith(key.encode())),
            "You let in whoever's key begins like yours.",
        ),
        Mutant(
            _letting_in(same=lambda given, key: key.startswith(given.decode("latin-1"))),
            "You let in whoever knows a beginning of the key, and so everybody who gives none.",
        ),
        Mutant(
            _letting_in(same=lambda given, key: hmac.compare_digest(given[: len(key)], key.encode())),
            "You compare as many bytes as your key has. Whoever's key begins like it, and goes on, comes in.",
        ),
        Mutant(
            _letting_in(same=lambda given, key: hmac.compare_digest(given, key.encode()[: len(given)])),
            "You compare as many bytes as were given. Whoever gives a beginning of the key comes in, or nothing.",
        ),
        Mutant(
            _letting_in(same=lambda given, key: key.encode() in given),
            "You look for the key somewhere in what was given. It has to be all of it.",
        ),
        Mutant(
            _letting_in(same=_as_text),
            "compare_digest takes two str only where they are ASCII, and a header may hold any bytes. Anybody could"
            " make the server fail: compare bytes.",
            begins="TypeError",
        ),
        Mutant(
            _letting_in(same=lambda given, key: hmac.compare_digest(given.decode(), key)),
            "You decode what was given, and it may be no UTF-8. Anybody could make the server fail: compare bytes.",
            begins="UnicodeDecodeError",
        ),
        Mutant(
            _letting_in(cut=lambda header: (*header.split(), b"", b"")[:2]),
            "You cut at every space. A key may have spaces inside: only the first one ends the word before it.",
        ),
        Mutant(
            _letting_in(cut=lambda header: (header.split(b" ")[0], header.split(b" ")[1])),
            "You take a second word for granted. Without one, this raises, and anybody can make the server fail.",
            begins="IndexError",
        ),
        Mutant(
            _unpacking,
            "You unpack two parts, and there may be one: a header without a space makes the server fail. partition"
            " always gives three.",
            begins="ValueError",
        ),
        Mutant(
            _without_a_space,
            "You do not ask for a space behind the word: `Bearers3cret` is one word, and another one than Bearer.",
        ),
        Mutant(
            _anywhere,
            "You look for the key somewhere in the header. It has to stand behind the word, and to be all that does.",
        ),
        Mutant(
            _letting_in(same=lambda given, key: hmac.compare_digest(given.decode("ascii", "ignore"), key)),
            "You throw away bytes that are no text, and then what is left is the key. A key with something in it that"
            " does not belong there is a wrong one: compare bytes.",
        ),
        Mutant(
            _letting_in(given=_one_space),
            "You make one space of several, and the key may have several inside. Spaces around it are free, spaces in"
            " it are its own.",
        ),
        Mutant(
            _letting_in(given=_one_space, same=lambda g, k: hmac.compare_digest(g, _one_space(k.encode()))),
            "You let in a key with other spaces inside than yours has. Only those around it are free.",
        ),
        Mutant(
            _letting_in(given=_no_space, same=lambda g, k: hmac.compare_digest(g, _no_space(k.encode()))),
            "You take all spaces out of both keys. Only those around the key are free, those inside are its own.",
        ),
    ],
    alternatives=[_letting_in(), _both_whole, _step_by_step, _by_pattern, _by_their_hashes],
)
