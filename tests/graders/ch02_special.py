"""2.5: which special tokens are the template's. Wanted values are worked by hand."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

MARK = "\ue000"
CHATML = re.compile(r"<\|im_start\|>|<\|im_end\|>")
ONE_CHARACTER = re.compile("▲|<s>")

Split = Callable[[str, re.Pattern[str], str], list[str]]


def _splitting(text: str, want: list[str], special: re.Pattern[str] = CHATML) -> Case:
    def observe(f: Function) -> Observation:
        pieces = f(text, special, MARK)
        return _seen(pieces) if _is_list_of_texts(pieces) else dict.fromkeys(_seen([]), _kind(pieces))

    shown = text.replace(MARK, "MARK").replace("\n", "\\n")
    return Case(
        f"the text {shown}; special tokens {special.pattern}",
        observe,
        lambda: _seen(want),
    )


def _is_list_of_texts(pieces: Any) -> bool:
    return isinstance(pieces, list) and all(isinstance(piece, str) for piece in pieces)


def _kind(pieces: Any) -> str:
    if pieces is None:
        return "None (is there a `return`?)"
    if not isinstance(pieces, list):
        return f"no list of texts, but {in_words(pieces)}".replace(MARK, "MARK")
    return f"a list in which not all is text: there is a {next(type(p) for p in pieces if type(p) is not str).__name__}"


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


def _tokens_of_one_model(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return _right(text, CHATML, mark)


def _cutting_with(pattern: str) -> Split:
    """The right answer with another pattern, in which SPECIAL and MARK stand for what they say."""

    def split(text: str, special: re.Pattern[str], mark: str) -> list[str]:
        pieces = re.split(pattern.replace("SPECIAL", special.pattern).replace("MARK", mark), text)
        return [_clean(piece, mark) for piece in pieces]

    return split


def _by_matches(is_users: Callable[[re.Match[str], str, str], bool]) -> Split:
    """Match by match, but for which of them are a user's."""

    def split(text: str, special: re.Pattern[str], mark: str) -> list[str]:
        pieces, start = [], 0
        for match in special.finditer(text):
            if not is_users(match, text, mark):
                pieces += [_clean(text[start : match.start()], mark), match[0]]
                start = match.end()
        return [*pieces, _clean(text[start:], mark)]

    return split


def _in_pairs(text: str, special: re.Pattern[str], mark: str) -> list[Any]:
    pieces = _right(text, special, mark)
    return list(zip(pieces[::2], pieces[1::2], strict=False)) or [("", "")]


def _arguments_swapped(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(mark, piece) for piece in _split(text, special, mark)]


def _split_by_the_pattern_itself(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    return [_clean(piece, mark) for piece in special.split(text)]


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
            _then(lambda pieces: pieces if pieces[-1] else pieces[:-1]),
            "The last text is missing where it is empty. There is a text at both ends, also behind a token that ends"
            " the conversation.",
        ),
        Mutant(
            _in_pairs,
            "That is a list of pairs. One flat list is wanted, [text, token, text, ..., text], with a text at its end.",
        ),
        Mutant(
            lambda text, special, mark: tuple(_right(text, special, mark)),
            "The pieces are right, and they are a tuple. A list is wanted.",
        ),
        Mutant(lambda text, special, mark: None, "Nothing comes back: the function ends without a `return`."),
        Mutant(
            _arguments_swapped,
            "The arguments of without_mark are swapped: the text comes first, without_mark(piece, mark).",
            begins="TypeError: ord()",
        ),
        Mutant(
            _plain_replace,
            "A mark that went through a template's `tojson` is there as an escape, \\ue000, and your replace does not"
            " know it. without_mark(text, mark) does.",
        ),
        Mutant(
            _no_look_behind_the_token,
            "You cut at a token that has the mark right behind it, which says that it is the user's. (?!mark) behind"
            " the group asks for that; a look-behind, (?<!mark), asks what stands *before* its place.",
        ),
        Mutant(
            _cutting_with("(?<!MARK)(SPECIAL)"),
            "You ask whether the mark stands before the token. It stands right behind a token that is the user's:"
            " (?!mark), after the group.",
        ),
        Mutant(
            _by_matches(lambda match, text, mark: len(match[0]) == 1 and text[match.end() : match.end() + 1] == mark),
            "You ask for the mark only behind tokens of one character. *Any* token with the mark right behind it is"
            " text.",
        ),
        Mutant(
            _cutting_with("(SPECIAL)[^MARK]"),
            "[^mark] is a character of its own: what stands behind a token is cut away with it, and a token at the very"
            " end is not found. A look-ahead, (?!mark), takes nothing.",
        ),
        Mutant(
            _cutting_with("(SPECIAL)(?=[^MARK])"),
            "(?=[^mark]) asks for a character behind the token, and there is none at the end of the text. (?!mark) is"
            " content with that.",
        ),
        Mutant(
            _cutting_with("((SPECIAL)(?!MARK))"),
            "Each token comes twice: re.split keeps what *every* group matches, and yours are two, one in the other."
            " Make one of them (?:...), which is no group.",
        ),
        Mutant(
            _by_matches(lambda match, text, mark: text[match.end()] == mark),
            "text[match.end()] is an accident where a token ends the text. A slice, text[end : end + 1], is just empty"
            " there, and text.startswith(mark, end) asks the same.",
            begins="IndexError",
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
            _tokens_of_one_model,
            "Your pattern knows the special tokens of one model only. Which there are is what `special` says: build"
            " yours from special.pattern.",
        ),
        Mutant(
            _cutting_with(r"(<\|.*?\|>)(?!MARK)"),
            "Your pattern takes whatever looks like a special token, also one that a mark has broken, and misses those"
            " of other models. Which there are is what special.pattern says.",
        ),
        Mutant(
            _escaped,
            "Nothing is cut. Take special.pattern as it stands: it is a pattern already, which re.escape would spoil;"
            " and {special} in an f-string spells the object, not its pattern.",
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
    alternatives=[
        _right,
        _by_matches(lambda match, text, mark: text.startswith(mark, match.end())),
        _cutting_with("((?:SPECIAL)(?!MARK))"),
        _odd_ones_as_they_are,
    ],
)
