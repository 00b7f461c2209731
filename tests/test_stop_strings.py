"""The two rules of stop strings, against their definitions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.stop_strings import first_stop, held_length

TEXTS = st.text("ab", max_size=9)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


def endings(text: str, stops: list[str]) -> list[str]:
    """All stop strings that `text` ends with."""
    return [stop for stop in stops if text.endswith(stop)]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(text=TEXTS, stops=STOPS)
def test_the_first_stop_is_the_first_to_be_complete_and_the_longest_of_those(text: str, stops: list[str]) -> None:
    ends = [end for end in range(1, len(text) + 1) if endings(text[:end], stops)]
    if not ends:
        assert first_stop(text, stops) is None
    else:
        longest = max(endings(text[: ends[0]], stops), key=len)
        assert first_stop(text, stops) == (ends[0] - len(longest), longest)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(text=TEXTS, stops=STOPS)
def test_a_character_is_held_if_and_only_if_some_continuation_makes_it_part_of_the_first_stop(
    text: str, stops: list[str]
) -> None:
    # One that has another inside, before its own end, can never be the first.
    stops = [stop for stop in stops if first_stop(stop[:-1], stops) is None]
    if first_stop(text, stops) is not None:
        return
    shown = text[: len(text) - held_length(text, stops)]
    cuts = [found[0] for rest in _rests(stops) if (found := first_stop(text + rest, stops)) is not None]
    assert min([len(text), *cuts]) == len(shown)


def _rests(stops: list[str]) -> list[str]:
    """Every end of every stop string: what could complete one."""
    return [stop[start:] for stop in stops for start in range(len(stop))]


@pytest.mark.parametrize(
    ("text", "stop", "held"),
    [("xaaa", "aab", 2), ("ababab", "ababc", 4), ("\n\n\n", "\n\nUser:", 2), ("ENd", "END", 0)],
)
def test_what_the_chapter_says_is_held_is_held(text: str, stop: str, held: int) -> None:
    assert held_length(text, [stop]) == held
