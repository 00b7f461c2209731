"""The journey of a request, as it is told."""

import pytest
from tiny import save_tiny_model

from minillm import LLM, SamplingParams
from minillm.trace import ceiling_sentence, human_bytes, human_seconds, journey


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=256)
    return LLM(directory, device="cpu", dtype="float32")


def test_the_trace_tells_the_context_of_the_first_and_of_the_last_pass(tiny):
    """The pass before the second token reads the prompt and the first token; the last token is never computed."""
    running = tiny.start("the cat sat", SamplingParams(max_tokens=4, ignore_eos=True))
    running.run()
    prompt, per_token = len(running.prompt_ids), running.cache.bytes_per_token
    decode_row = next(row for row in journey(running) if row.name == "decode x 3")
    assert f"{human_bytes((prompt + 1) * per_token)} to {human_bytes((prompt + 3) * per_token)}" in decode_row.moved
    assert running.cache.length == prompt + 3


@pytest.mark.parametrize(
    ("bytes_per_pass", "told", "not_told"),
    [
        (100e6, "stay in the processor's own caches", "limits --again"),
        (538e6, "something else was running at the time: measure it again with `minillm limits --again`", "caches"),
    ],
)
def test_more_than_the_ceiling_is_the_caches_doing_or_a_wrong_measurement(
    tiny, monkeypatch, bytes_per_pass, told, not_told
):
    running = tiny.start("the cat sat", SamplingParams(max_tokens=4, ignore_eos=True))
    running.run()
    monkeypatch.setattr(type(running), "decode_bytes_per_pass", lambda self: (bytes_per_pass, 1e3))
    running.bandwidth_bytes_per_s = bytes_per_pass  # one token per second: the tiny model is faster
    sentence = ceiling_sentence(running)
    assert "More than all?" in sentence
    assert told in sentence
    assert not_told not in sentence


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 B"), (23_040, "23 kB"), (999_999, "1 MB"), (538_000_000, "538 MB"), (1.61e9, "1.61 GB")],
)
def test_bytes_are_three_digits_in_the_unit_that_suits(count, text):
    assert human_bytes(int(count)) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.00021, "0.21 ms"), (0.0357, "35.7 ms"), (0.99996, "1.00 s")])
def test_seconds_are_never_a_thousand_of_a_smaller_unit(seconds, text):
    assert human_seconds(seconds) == text
