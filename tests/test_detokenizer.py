"""Streaming: nothing shown is taken back, nothing is held for longer than it must be, nothing is lost at
the end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import sentencepiece_backend, small_tokenizer
from text_samples import ALL_SAMPLES, EMOJI

from minillm.detokenizer import StopMatcher, StreamDecoder, detokenize
from minillm.errors import InputError
from minillm.tokenizer import Tokenizer


@dataclass(frozen=True)
class FakeStep:
    """A decode step made by hand."""

    token_id: int
    logprob: float = -0.5
    finish_reason: str | None = None


def streamed(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    """The pieces for each id, and the flushed rest."""
    decoder = StreamDecoder(tokenizer, skip_special_tokens=skip)
    return [*(decoder.add(token_id) for token_id in ids), decoder.flush()]


# --- StreamDecoder


@pytest.mark.real_model
def test_streaming_every_sample_joins_to_its_decoding(tokenizer: Tokenizer) -> None:
    for text in ALL_SAMPLES:
        ids = tokenizer.encode(text)
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == text


@pytest.mark.real_model
@settings(max_examples=300, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_streaming_any_ids_joins_to_their_decoding(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.real_model
def test_no_replacement_character_appears_while_an_emoji_arrives(tokenizer: Tokenizer) -> None:
    for text in EMOJI:
        pieces = streamed(tokenizer, tokenizer.encode(text))
        assert "�" not in "".join(pieces), f"{text!r} was shown before it was whole"
        assert pieces[-1] == "", f"{text!r} was held though it was whole"


@pytest.mark.real_model
def test_what_is_shown_is_always_the_beginning_of_the_whole_and_lags_by_less_than_a_character(
    tokenizer: Tokenizer,
) -> None:
    for text in ALL_SAMPLES[:150]:
        decoder, shown, data = StreamDecoder(tokenizer), "", b""
        for token_id in tokenizer.encode(text):
            shown += decoder.add(token_id)
            data += tokenizer.id_to_bytes(token_id)
            assert text.startswith(shown)
            assert len(data) - len(shown.encode()) < 4, "more is held than an unfinished character"


def test_an_unfinished_character_is_flushed_once() -> None:
    small = small_tokenizer()
    first, second = small.encode("€")[:2]
    decoder = StreamDecoder(small)
    assert [decoder.add(first), decoder.add(second)] == ["", ""]
    assert [decoder.flush(), decoder.flush()] == ["�", ""]


def test_bytes_that_are_never_valid_become_replacement_characters_and_the_text_goes_on() -> None:
    small = small_tokenizer()
    bad = small.token_to_id("ÿ")  # the byte 0xFF
    euro = small.encode("€")
    assert bad is not None
    assert streamed(small, [bad, *small.encode("a"), euro[0], *small.encode("b")]) == ["�", "a", "", "�b", ""]


def test_a_skipped_token_inside_a_character_does_not_break_it() -> None:
    small = small_tokenizer()
    euro = small.encode("€")
    ids = [euro[0], 2, *euro[1:]]
    assert "".join(streamed(small, ids)) == small.decode(ids) == "€"
    assert "".join(streamed(small, ids, skip=False)) == small.decode(ids, skip_special_tokens=False)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 280), max_size=12), skip=st.booleans())
def test_sentencepiece_streaming_joins_to_decoding(ids: list[int], skip: bool) -> None:
    tokenizer = Tokenizer(sentencepiece_backend(), {"bos_token": "<s>"})
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_spaces_that_the_pipeline_strips_are_stripped_over_several_tokens() -> None:
    backend = sentencepiece_backend(spaces_stripped=2)
    tokenizer = Tokenizer(backend, {"bos_token": "<s>"})
    mark, word = tokenizer.token_to_id("▁"), tokenizer.token_to_id("▁hi")
    assert mark is not None
    assert word is not None
    for ids, text in (
        ([mark, mark, word], " hi"),
        ([mark, word, word], "hi hi"),
        ([word, mark, word], "hi  hi"),
    ):
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == backend.decode(ids) == text


# --- StopMatcher


def cut_at_first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, read along letter by letter: the first stop to be complete, the longest of those."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_cutting_of_any_text_ends_at_the_first_stop(data: st.DataObject) -> None:
    stops = data.draw(st.lists(st.text("abc", min_size=1, max_size=4), max_size=5))
    pieces = data.draw(st.lists(st.text("abc", max_size=5), max_size=10))
    matcher = StopMatcher(stops)
    shown = "".join(matcher.add(piece) for piece in pieces) + matcher.flush()
    assert (shown, matcher.matched) == cut_at_first_stop("".join(pieces), stops)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(data=st.data())
def test_exactly_what_could_still_become_a_stop_is_held(data: st.DataObject) -> None:
    stops = data.draw(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
    text = data.draw(st.text("ab", max_size=12))
    matcher = StopMatcher(stops)
    shown = matcher.add(text)
    if matcher.matched is None:
        ends = [text[start:] for start in range(len(text))]
        held = next((end for end in ends if any(stop.startswith(end) for stop in stops)), "")
        assert shown + held == text


def test_a_stop_inside_one_piece_drops_itself_and_all_after_it() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.add("one END two"), matcher.add(" three"), matcher.flush()] == ["one ", "", ""]
    assert matcher.matched == "END"


def test_the_first_half_of_a_stop_never_leaks() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.add(piece) for piece in ("yes\n", "\nUs", "er", ": hi")] == ["yes", "", "", ""]
    assert matcher.matched == "\n\nUser:"


def test_a_stop_that_does_not_come_is_given_back() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert [matcher.add(piece) for piece in ("yes\n", "\nUs", "ed")] == ["yes", "", "\n\nUsed"]
    assert matcher.matched is None
    assert [matcher.add("\n"), matcher.flush(), matcher.flush()] == ["", "\n", ""]


def test_of_stops_that_end_together_the_longest_is_cut() -> None:
    for pieces in (["xabc"], ["x", "a", "b", "c"]):
        matcher = StopMatcher(["c", "bc", "abc", "abc"])
        assert "".join(map(matcher.add, pieces)) == "x"
        assert matcher.matched == "abc"


def test_of_overlapping_stops_the_first_to_be_complete_is_cut() -> None:
    for pieces in (["xabcd"], ["xab", "cd"]):
        matcher = StopMatcher(["abcd", "bc"])
        assert "".join(map(matcher.add, pieces)) == "xa"
        assert matcher.matched == "bc"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        StopMatcher(["a", ""])


def test_a_single_string_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(InputError, match="list"):
        StopMatcher("stop")


# --- detokenize


class Steps:
    """A source of steps that records how far it was read and whether it was closed."""

    def __init__(self, *steps: FakeStep) -> None:
        self.steps, self.pulled, self.closed = list(steps), 0, False

    def __iter__(self) -> Iterator[FakeStep]:
        return self

    def __next__(self) -> FakeStep:
        if self.pulled == len(self.steps):
            raise StopIteration
        self.pulled += 1
        return self.steps[self.pulled - 1]

    def close(self) -> None:
        self.closed = True


def steps_of(tokenizer: Tokenizer, text: str, *ending: Any) -> list[FakeStep]:
    return [*(FakeStep(i) for i in tokenizer.encode(text)), *ending]


def test_there_is_one_piece_per_step_with_its_id_and_logprob() -> None:
    small = small_tokenizer()
    steps = steps_of(small, "€u", FakeStep(2, -0.25, "stop"))
    pieces = list(detokenize(steps, small))
    assert [piece.text for piece in pieces] == ["", "", "€", "u", ""]
    assert [piece.token_id for piece in pieces] == [step.token_id for step in steps]
    assert [piece.logprob for piece in pieces] == [step.logprob for step in steps]
    assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["stop"]


def test_a_token_that_ends_the_sequence_shows_no_text_even_if_it_is_ordinary() -> None:
    small = small_tokenizer()
    letter = small.encode("z")[0]
    pieces = list(detokenize([*steps_of(small, "ab"), FakeStep(letter, finish_reason="stop")], small))
    assert "".join(piece.text for piece in pieces) == "ab"


def test_the_last_token_before_the_limit_is_shown() -> None:
    small = small_tokenizer()
    letter = small.encode("z")[0]
    pieces = list(detokenize([*steps_of(small, "ab"), FakeStep(letter, finish_reason="length")], small))
    assert "".join(piece.text for piece in pieces) == "abz"
    assert pieces[-1].finish_reason == "length"


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_an_unfinished_character_and_a_held_stop_are_flushed_in_the_last_piece(reason: str) -> None:
    small = small_tokenizer()
    euro = small.encode("€")
    steps = [
        *steps_of(small, "aEN"),
        FakeStep(euro[0]),
        FakeStep(euro[1] if reason == "length" else 2, 0.0, reason),
    ]
    pieces = list(detokenize(steps, small, stop=["END"]))
    assert [piece.text for piece in pieces] == ["a", "", "", "", "EN�"]
    assert pieces[-1].finish_reason == reason


def test_a_stop_string_ends_the_text_closes_the_steps_and_asks_for_no_more() -> None:
    small = small_tokenizer()
    steps = Steps(*steps_of(small, "abENDxyz"))
    pieces = list(detokenize(steps, small, stop=["END"]))
    assert "".join(piece.text for piece in pieces) == "ab"
    assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["stop"]
    assert steps.pulled == 5
    assert steps.closed


def test_the_steps_are_closed_before_the_last_piece_is_handed_out() -> None:
    small = small_tokenizer()
    steps = Steps(*steps_of(small, "a", FakeStep(2, 0.0, "stop")), FakeStep(5))
    for piece in detokenize(steps, small):
        assert steps.closed == (piece.finish_reason is not None)


def test_a_stop_string_completed_by_the_last_step_wins_over_the_limit() -> None:
    small = small_tokenizer()
    letter = small.encode("D")[0]
    steps = [*steps_of(small, "abEN"), FakeStep(letter, finish_reason="length")]
    last = list(detokenize(steps, small, stop=["END"]))[-1]
    assert (last.text, last.finish_reason) == ("", "stop")


def test_a_stop_string_may_be_completed_by_the_replacement_of_an_unfinished_character() -> None:
    small = small_tokenizer()
    steps = [*steps_of(small, "ab"), FakeStep(small.encode("€")[0], finish_reason="length")]
    pieces = list(detokenize(steps, small, stop=["b�"]))
    assert "".join(piece.text for piece in pieces) == "a"
    assert pieces[-1].finish_reason == "stop"


def test_steps_that_break_off_leave_their_tail_in_one_more_piece() -> None:
    small = small_tokenizer()
    pieces = list(detokenize(steps_of(small, "aE"), small, stop=["END"]))
    assert [(piece.text, piece.token_id) for piece in pieces[-1:]] == [("E", None)]
    assert pieces[-1].finish_reason is None
    assert len(list(detokenize(steps_of(small, "a"), small))) == 1, "no empty piece is added"


def test_special_tokens_are_skipped_when_the_loop_goes_on_past_them() -> None:
    small = small_tokenizer()
    steps = [*steps_of(small, "a"), FakeStep(2), *steps_of(small, "b"), FakeStep(2, 0.0, "length")]
    assert "".join(piece.text for piece in detokenize(steps, small)) == "ab"


def test_a_caller_who_leaves_early_closes_the_steps() -> None:
    small = small_tokenizer()
    steps = Steps(*steps_of(small, "abc"))
    pieces = detokenize(steps, small)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert steps.closed


@pytest.mark.real_model
def test_no_stop_string_means_the_whole_text_for_every_sample(tokenizer: Tokenizer) -> None:
    for text in ALL_SAMPLES:
        ids = tokenizer.encode(text)
        steps = [*(FakeStep(i) for i in ids), FakeStep(2, 0.0, "stop")]
        assert "".join(piece.text for piece in detokenize(steps, tokenizer)) == text
