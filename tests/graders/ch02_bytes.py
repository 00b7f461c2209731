"""2.1: which character stands for which byte. Wanted characters are read off GPT-2's published vocabulary."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_VISIBLE)]


def _stands_for(*wanted: tuple[int, str]) -> Case:
    """Which character stands for each of these bytes."""

    def observe(f: Function) -> Observation:
        alphabet = f()
        return {_name(byte): _character(alphabet, byte) for byte, _ in wanted}

    given = f"nothing; asked for the characters of {', '.join(f'0x{byte:02X}' for byte, _ in wanted)}"
    return Case(given, observe, lambda: {_name(byte): character for byte, character in wanted})


def _name(byte: int) -> str:
    return f"the character that stands for byte 0x{byte:02X}"


def _character(alphabet: object, byte: int) -> str:
    """In words where it is not exactly one."""
    if not isinstance(alphabet, Mapping):
        return _no_dict(alphabet)
    kinds = [type(one).__name__ for one in next(iter(alphabet.items()), ())]
    if kinds and kinds != ["str", "int"]:
        return f"the dict leads from {kinds[0]} to {kinds[1]}, not from str to int"
    found = [character for character, value in alphabet.items() if value == byte]
    if len(found) != 1:
        return "none" if not found else f"{len(found)} of them: {', '.join(map(repr, found))}"
    return found[0]


def _no_dict(alphabet: object) -> str:
    return "None (is there a `return`?)" if alphabet is None else f"no dict, but a {type(alphabet).__name__}"


def _whole() -> Case:
    def observe(f: Function) -> Observation:
        alphabet = f()
        if not isinstance(alphabet, Mapping):
            return dict.fromkeys(_whole_want(), _no_dict(alphabet))
        return {
            "how many characters": len(alphabet),
            "bytes that have no character": _hex(set(range(256)) - set(alphabet.values())),
            "characters that cannot be seen": _unseen(alphabet),
        }

    return Case("nothing; all 256 entries looked at", observe, _whole_want)


def _whole_want() -> Observation:
    return {
        "how many characters": 256,
        "bytes that have no character": "none",
        "characters that cannot be seen": "none",
    }


def _unseen(alphabet: Mapping[object, object]) -> str:
    unseen = [c for c in alphabet if not (isinstance(c, str) and len(c) == 1 and c.isprintable() and c != " ")]
    return ", ".join(map(repr, unseen[:4])) + (", ..." if len(unseen) > 4 else "") if unseen else "none"


def _hex(values: Iterable[int]) -> str:
    ordered = sorted(values)
    return ", ".join(f"0x{b:02X}" for b in ordered[:4]) + (", ..." if len(ordered) > 4 else "") if ordered else "none"


def _alphabet(visible: Sequence[int], stand_in: Callable[[int, int], int] = lambda n, _: 0x100 + n) -> dict[str, int]:
    """Visible bytes as themselves; the n-th of the others, a byte, as chr(stand_in(n, byte))."""
    others = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(stand_in(n, byte)): byte for n, byte in enumerate(others)}


BYTE_LEVEL_ALPHABET = Grader(
    cases=[
        _stands_for((0x41, "A"), (0x21, "!"), (0x7E, "~"), (0xA1, "¡"), (0xAC, "¬"), (0xAE, "®"), (0xFF, "ÿ")),
        _stands_for((0x20, "Ġ"), (0x0A, "Ċ"), (0x00, "Ā")),
        _stands_for((0x7F, "ġ"), (0x80, "Ģ"), (0xA0, "ł"), (0xAD, "Ń")),
        _whole(),
    ],
    mutants=[
        Mutant(
            lambda: {chr(byte): byte for byte in range(256)},
            "Every byte stands for itself, also those that cannot be seen: a token of spaces and line ends is then a"
            " string of spaces and line ends, which no vocabulary file, written as words, survives.",
        ),
        Mutant(
            lambda: _alphabet(_VISIBLE, lambda n, byte: 0x100 + byte),
            "You add 0x100 to the byte's own value. The others are numbered through: the first is U+0100, the second"
            " U+0101, whatever bytes they are. The two agree up to the space, and part at 0x7F.",
        ),
        Mutant(
            lambda: _alphabet([], lambda n, byte: 0x100 + byte),
            "You move all 256 bytes up, the visible ones too. Those stand for themselves, so that English in a"
            " vocabulary can be read.",
        ),
        Mutant(
            lambda: {byte: character for character, byte in _alphabet(_VISIBLE).items()},
            "The dict is the wrong way round: from byte to character. Decoding looks a character up and wants its"
            " byte.",
        ),
        Mutant(
            lambda: _alphabet([*range(0x21, 0x7E), *range(0xA1, 0xAC), *range(0xAE, 0xFF)]),
            "Each of your ranges ends one byte early: range(a, b) does not hold b.",
        ),
        Mutant(
            lambda: _alphabet([*range(0x21, 0x7F), *range(0xA1, 0x100)]),
            "You count 0xAD as visible. It is the soft hyphen, which shows only where a line breaks at it, so it is"
            " one of the others.",
        ),
        Mutant(
            lambda: _alphabet([*range(0x20, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]),
            "You count the space as visible. It must not be: a vocabulary is written as words, and a token that begins"
            " with a space has to show it. That is what Ġ is.",
        ),
        Mutant(
            lambda: _alphabet(range(0x21, 0x7F)),
            "You let only ASCII stand for itself. The visible characters of the upper half of Latin-1, 0xA1 to 0xAC and"
            " 0xAE to 0xFF, do so too.",
        ),
        Mutant(
            lambda: _alphabet([*range(0x21, 0x80), *range(0xA1, 0xAD), *range(0xAE, 0x100)]),
            "You count 0x7F as visible. It is DEL, a control like those below the space; 0x7E, the tilde, is the last"
            " visible one.",
        ),
        Mutant(
            lambda: _alphabet([*range(0x21, 0x7F), *range(0xA0, 0xAD), *range(0xAE, 0x100)]),
            "You count 0xA0 as visible. It is the no-break space; the visible ones of that half begin at 0xA1.",
        ),
        Mutant(
            lambda: {chr(byte): byte for byte in _VISIBLE},
            "The 68 bytes that cannot be seen have no character at all, and a text with a space could not be spelled."
            " (Or they had some that visible bytes have, and were overwritten: theirs begin at chr(0x100).)",
        ),
        Mutant(
            lambda: _alphabet(_VISIBLE, lambda n, _: 0x101 + n),
            "The first of the others is U+0100 itself: count from 0.",
        ),
        Mutant(
            lambda: _alphabet(_VISIBLE, lambda n, _: 0x21 + n),
            "The stand-ins of the 68 others are characters that visible bytes have already, and overwrite them: number"
            " them from U+0100 on, chr(0x100 + n).",
        ),
        Mutant(
            lambda: _alphabet(_VISIBLE, lambda n, _: 0x121 + n),
            "You number the others from U+0121 on. The first of them, byte 0x00, is U+0100; it is the 33rd, the space,"
            " that comes to be U+0120.",
        ),
        Mutant(
            lambda: _alphabet([*range(0x21, 0x7F), *range(0xA0, 0x100)]),
            "You count the whole upper half from 0xA0 on as visible. Two of it are not: 0xA0, the no-break space, and"
            " 0xAD, the soft hyphen.",
        ),
        Mutant(
            lambda: _alphabet(_VISIBLE) | {"ł": 0xAD, "Ń": 0xA0},
            "The no-break space, 0xA0, and the soft hyphen, 0xAD, have each other's stand-in. The others are numbered"
            " in the order of their bytes.",
        ),
        Mutant(
            lambda: {character: bytes([byte]) for character, byte in _alphabet(_VISIBLE).items()},
            "The values are bytes objects of length one, b'A'. The byte's number is wanted, an int: 0x41.",
        ),
        Mutant(
            lambda: {character: chr(byte) for character, byte in _alphabet(_VISIBLE).items()},
            "The values are text. The byte's number is wanted, an int: 0x41, which is what b'A'[0] is too.",
        ),
        Mutant(lambda: None, "Nothing comes back: the function ends without a `return`."),
        Mutant(
            lambda: list(_alphabet(_VISIBLE)),
            "That is a list. A dict is wanted, which leads from each character to its byte: {'A': 0x41, ...}.",
        ),
    ],
    alternatives=[
        lambda: _seen_by_python(),
        lambda: dict(zip([*map(chr, _VISIBLE), *map(chr, range(0x100, 0x144))], [*_VISIBLE, *_OTHERS], strict=True)),
    ],
)


def _seen_by_python() -> dict[str, int]:
    alphabet: dict[str, int] = {}
    moved = 0
    for byte in range(256):
        seen = chr(byte).isprintable() and byte != 0x20
        alphabet[chr(byte if seen else 0x100 + moved)] = byte
        moved += not seen
    return alphabet
