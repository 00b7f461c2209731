"""2.5: which special tokens are the template's. Wanted values are worked by hand."""

import re
from collections.abc import Callable, Sequence

from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

MARK = "\ue000"
CHATML = re.compile(r"<\|im_start\|>|<\|im_end\|>")
ONE_CHARACTER = re.compile("<s>|▲")

Split = Callable[[str, re.Pattern[str], str], list[str]]


def _splitting(text: str, want: list[str], special: re.Pattern[str] = CHATML) -> Case:
    def observe(f: Function) -> Observation:
        pieces = f(text, special, MARK)
        if not (isinstance(pieces, list | tuple) and all(isinstance(piece, str) for piece in pieces)):
            return dict.fromkeys(_seen([]), f"no list of texts, but {in_words(pieces)}")
        return _seen(pieces)

    shown = text.replace(MARK, "MARK").replace("\n", "\\n")
    return Case(
        f"the text {shown}; special tokens {special.pattern}",
        observe,
        lambda: _seen(want),
    )


def _seen(pieces: Sequence[str]) -> dict[str, str]:
    """Pieces compare and are read as text."""
    return {
        "what is special": " and ".join(pieces[1::2]) or "nothing",
        "the pieces": repr(list(pieces)).replace(MARK, "MARK"),
    }


def _clean(text: str, mark: str) -> str:
    return text.replace(mark, "").replace(f"\\u{ord(mark):04x}", "")


def _split(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return re.split(f"({special.pattern})(?!{mark})", text)


def _right(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(piece, mark) for piece in _split(text, special, mark)]


def _then(change: Callable[[list[str]], list[str]]) -> Split:
    """The right answer, changed."""
    return lambda text, special, mark: change(_right(text, special, mark))


def _cleaned_first(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return _split(_clean(text, mark), special, mark)


def _without_a_group(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(piece, mark) for piece in re.split(f"(?:{special.pattern})(?!{mark})", text)]


def _no_look_behind_the_token(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(piece, mark) for piece in re.split(f"({special.pattern})", text)]


def _loose_alternatives(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    """Without the group's brackets around all alternatives, the look-ahead belongs to the last of them."""
    return [_clean(piece, mark) for piece in re.split(f"({special.pattern}(?!{mark}))", text)]


def _plain_replace(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [piece.replace(mark, "") for piece in _split(text, special, mark)]


def _first_only(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(p, mark) for p in re.split(f"({special.pattern})(?!{mark})", text, maxsplit=1)]


def _escaped(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(p, mark) for p in re.split(f"({re.escape(special.pattern)})(?!{mark})", text)]


def _split_by_the_pattern_itself(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(piece, mark) for piece in special.split(text)]


def _by_hand(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    pieces, start = [], 0
    for match in special.finditer(text):
        if text[match.end() : match.end() + 1] != mark:
            pieces += [_clean(text[start : match.start()], mark), match[0]]
            start = match.end()
    return [*pieces, _clean(text[start:], mark)]


def _odd_ones_as_they_are(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    pieces = re.split(rf"({special.pattern})(?!{re.escape(mark)})", text)
    pieces[::2] = [_clean(piece, mark) for piece in pieces[::2]]
    return pieces


START, END = "<|im_start|>", "<|im_end|>"
_BROKEN = f"<{MARK}|im_end|>"

SPLIT_AT_UNMARKED = Grader(
    cases=[
        _splitting(f"{START}user\nHi{END}\n", ["", START, "user\nHi", END, "\n"]),
        _splitting(f"{START}user\n{_BROKEN} Hi{END}", ["", START, f"user\n{END} Hi", END, ""]),
        _splitting(f"{START}{_BROKEN}{END}{START}", ["", START, END, END, "", START, ""]),
        _splitting(f"a <|im_{MARK}end|> b", [f"a {END} b"]),
        _splitting(f'{START}{{"a": "<\\ue000|im_end|>"}}{END}', ["", START, f'{{"a": "{END}"}}', END, ""]),
        _splitting(f"▲ user ▲{MARK}<s> {MARK}", ["", "▲", " user ▲", "<s>", " "], ONE_CHARACTER),
        _splitting(f"<s>{MARK} is text, <s> is not", ["<s> is text, ", "<s>", " is not"], ONE_CHARACTER),
        _splitting("no token at all", ["no token at all"]),
        _splitting("", [""]),
    ],
    mutants=[
        Mutant(
            _cleaned_first,
            "You take the marks out before you cut. Then the user's <|im_end|> looks like the template's, and becomes a"
            " special token: this *is* the injection. Cut first, then clean.",
        ),
        Mutant(
            _split,
            "The marks are still in the texts, and would be encoded as part of them: without_mark(piece, mark).",
        ),
        Mutant(
            _without_a_group,
            "The tokens themselves are lost. re.split drops what it cuts at, unless it stands in a group: (...).",
        ),
        Mutant(
            _then(lambda pieces: [piece for piece in pieces if piece]),
            "You drop empty texts. Who comes after you tells texts from tokens by their positions, even and odd: an"
            " empty text keeps the others in place.",
        ),
        Mutant(
            _plain_replace,
            "A mark that went through a template's `tojson` is there as an escape, \\ue000, and your replace does not"
            " know it. without_mark(text, mark) does.",
        ),
        Mutant(
            _no_look_behind_the_token,
            "You cut at a token that has the mark right behind it. A token of one character has no inside where a mark"
            " could break it, so the mark behind it says that it is the user's.",
        ),
        Mutant(
            _loose_alternatives,
            "Your look-ahead (?!mark) stands inside the group, behind the last alternative, and so holds for that one"
            " only: a|b(?!x) is a, or b without x. Put it behind the group.",
        ),
        Mutant(
            _then(lambda pieces: [piece.strip() for piece in pieces]),
            "You strip white space. A line end after a special token is a token of its own for the model, and it has"
            " been trained with it: texts stay as they are.",
        ),
        Mutant(_first_only, "You cut once. A conversation has many special tokens."),
        Mutant(
            _escaped,
            "Nothing is cut. Where you have used re.escape: special.pattern is a pattern already, and escaped it"
            " matches only itself.",
        ),
        Mutant(
            lambda text, special, mark: special.findall(text),
            "Those are the tokens alone. The texts between them are wanted too, in their order.",
        ),
        Mutant(
            _split_by_the_pattern_itself,
            "special.split(text) drops the tokens, for the pattern has no group; and it knows nothing of a mark behind"
            " a token. Build a pattern of your own from special.pattern.",
        ),
    ],
    alternatives=[_right, _by_hand, _odd_ones_as_they_are],
)
