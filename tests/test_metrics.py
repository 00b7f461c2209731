"""The rules by which a request's numbers are made and predicted."""

import pytest

from minillm.metrics import decode_ceiling, decode_kv_bytes, request_seconds, time_per_output_token, tokens_held


def test_time_per_output_token_leaves_out_the_wait_for_the_first():
    assert time_per_output_token([5.0, 5.5, 6.5]) == 0.75


@pytest.mark.parametrize("times", [[], [3.0]])
def test_there_is_no_time_per_output_token_without_a_second_token(times):
    assert time_per_output_token(times) is None


def test_a_request_lasts_until_its_first_token_and_one_gap_for_each_further_one():
    assert request_seconds(2.0, 0.5, 5) == 4.0
    assert request_seconds(2.0, 0.5, 1) == 2.0


def test_the_last_token_is_never_held():
    assert tokens_held(7, 5) == 11
    assert tokens_held(7, 1) == 7
    assert tokens_held(7, 0) == 7


@pytest.mark.parametrize(("prompt", "completion"), [(5, 4), (1, 2), (9, 1), (9, 0), (1000, 500)])
def test_the_keys_and_values_of_an_answer_are_those_of_its_passes_added_up(prompt, completion):
    views = [prompt + done for done in range(1, completion)]  # when so many tokens are there, the next is wanted
    assert decode_kv_bytes(prompt, completion, 480) == 480 * sum(views)


def test_the_ceiling_of_the_h100_example():
    """3.35 TB/s over 26 GB of weights: about 129 tokens per second; a cache as large as the weights halves it."""
    assert decode_ceiling(3.35e12, 26e9) == pytest.approx(128.8, abs=0.1)
    assert decode_ceiling(3.35e12, 26e9, 26e9) == pytest.approx(64.4, abs=0.1)
