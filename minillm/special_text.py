"""Which text may become a special token: the template's, never a user's.

Special tokens ("<|im_end|>") are written as text in chat templates and read as single ids. A user who types
the same letters must get those letters, not the power to end their own turn and speak as the system.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from minillm.errors import InputError


def check_text(text: Any, where: str) -> None:
    """Refuse what is not text, and text with lone surrogates (they come from undecodable bytes on a command
    line).

    Raises:
        InputError: naming the place and the first offending character.
    """
    if not isinstance(text, str):
        raise InputError(f"{where} must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InputError(
            f"{where} holds the lone surrogate U+{code:04X} at position {error.start}, which is not text; "
            "give valid UTF-8"
        ) from error


class SpecialTextMarker:
    """Marks, in a user's strings, the text that reads like special tokens, so that only the template can
    write real ones.

    A character that occurs nowhere else is put inside each special token's text, and behind a string's end
    where a special token's text could begin: two parts "<|im_" and "end|>" that a template joins must not
    become a token either. After rendering, tokens that are still whole were written by the template; then the
    marks are taken out again.
    """

    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = sorted(special_texts, key=len, reverse=True)  # at each place the longest is the one that is meant
        self.whole = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        beginnings = {text[:length] for text in texts for length in range(1, len(text))}
        longest_first = sorted(beginnings, key=len, reverse=True)
        self._longest_beginning = max(map(len, beginnings), default=0)
        self._beginning_at_end = re.compile(f"(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})\\Z")

    def is_needed(self, text: str) -> bool:
        """Tell whether `text` holds a special token, or ends in what could begin one."""
        return bool(self.whole.search(text) or self._open_end(text))

    def mark(self, data: Any, mark: str) -> Any:
        """Return a copy of plain `data` with `mark` in every place where a special token could come to be."""
        if isinstance(data, str):
            return self._mark_text(data, mark)
        if isinstance(data, dict):
            return {self.mark(key, mark): self.mark(value, mark) for key, value in data.items()}
        if isinstance(data, list):
            return [self.mark(value, mark) for value in data]
        return data

    def _mark_text(self, text: str, mark: str) -> str:
        end = self._open_end(text)
        if end:
            text = text[:end] + mark + text[end:]
        return self.whole.sub(lambda match: match[0][:1] + mark + match[0][1:], text)

    def _open_end(self, text: str) -> int:
        """Where a special token's beginning ends `text` (white space aside, for templates trim), or 0."""
        stripped = text.rstrip()
        tail = stripped[-self._longest_beginning :] if self._longest_beginning else ""
        return len(stripped) if self._beginning_at_end.search(tail) else 0


def strings_in(data: Any) -> Iterator[str]:
    """Yield every string in plain data, dict keys among them."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from strings_in(key)
            yield from strings_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from strings_in(value)


def unused_character(texts: Iterable[str]) -> str:
    """Return a private-use character that occurs in none of `texts`, neither itself nor as a JSON escape."""
    everything = "\n".join(texts)
    escapes = everything.lower()
    for code in range(0xE000, 0xF900):
        if chr(code) not in everything and f"\\u{code:04x}" not in escapes:
            return chr(code)
    raise InputError("the messages use all 6400 private-use characters; leave one of U+E000..U+F8FF out")


def split_at_unmarked(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    """Cut rendered `text` at each special token that is whole: [text, token, text, token, ..., text], marks
    removed.

    A token that is one character long cannot be broken by a mark; the mark behind it says that it is a
    user's. There is a text at both ends and between two tokens, if only an empty one.
    """
    pieces = re.split(f"({special.pattern})(?!{mark})", text)
    return [without_mark(piece, mark) for piece in pieces]


def without_mark(text: str, mark: str) -> str:
    """Take `mark` out of rendered `text`, also where a template wrote it as JSON in ASCII."""
    return text.replace(mark, "").replace(f"\\u{ord(mark):04x}", "")
