"""The journey of a request, as it is told."""

import pytest
from tiny import save_tiny_model

from minillm import LLM, SamplingParams
from minillm.trace import human_bytes, human_seconds, journey


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
    ("count", "text"),
    [(999, "999 B"), (23_040, "23 kB"), (999_999, "1 MB"), (538_000_000, "538 MB"), (1.61e9, "1.61 GB")],
)
def test_bytes_are_three_digits_in_the_unit_that_suits(count, text):
    assert human_bytes(int(count)) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.00021, "0.21 ms"), (0.0357, "35.7 ms"), (0.99996, "1.00 s")])
def test_seconds_are_never_a_thousand_of_a_smaller_unit(seconds, text):
    assert human_seconds(seconds) == text
