"""SamplingParams: what it accepts, what it refuses and in which words, that nothing can change it."""

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.errors import InputError
from minillm.sampling_params import MAX_LOGPROBS, SamplingParams

REFUSED = [
    # field, value, what the sentence says is allowed
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", -3, "at least 1"),
    ("max_tokens", 1.5, "a whole number"),
    ("max_tokens", True, "a whole number"),
    ("max_tokens", "8", "a whole number"),
    ("max_tokens", None, "a whole number"),
    ("temperature", -0.1, "at least 0"),
    ("temperature", math.nan, "finite"),
    ("temperature", math.inf, "finite"),
    ("temperature", 10**400, "finite"),
    ("temperature", "hot", "finite"),
    ("temperature", True, "finite"),
    ("temperature", 1j, "finite"),
    ("top_k", -1, "at least 0"),
    ("top_k", 2.0, "a whole number"),
    ("top_p", 0, "above 0 and at most 1"),
    ("top_p", 1.0001, "above 0 and at most 1"),
    ("top_p", math.nan, "finite"),
    ("min_p", -0.01, "at least 0 and at most 1"),
    ("min_p", 1.01, "at least 0 and at most 1"),
    ("repetition_penalty", 0, "above 0"),
    ("repetition_penalty", -1.0, "above 0"),
    ("repetition_penalty", math.inf, "finite"),
    ("presence_penalty", 2.1, "at least -2 and at most 2"),
    ("presence_penalty", -2.1, "at least -2 and at most 2"),
    ("frequency_penalty", 2.1, "at least -2 and at most 2"),
    ("frequency_penalty", math.nan, "finite"),
    ("logit_bias", [(1, 2.0)], "a mapping"),
    ("logit_bias", {-1: 2.0}, "at least 0"),
    ("logit_bias", {"1": 2.0}, "a whole number"),
    ("logit_bias", {True: 2.0}, "a whole number"),
    ("logit_bias", {1: 101.0}, "at least -100 and at most 100"),
    ("logit_bias", {1: -math.inf}, "finite"),
    ("logit_bias", {1: math.nan}, "finite"),
    ("seed", 2**63, "from -9223372036854775808 to 9223372036854775807"),
    ("seed", -(2**63) - 1, "from -9223372036854775808 to 9223372036854775807"),
    ("seed", 1.0, "a whole number"),
    ("seed", False, "a whole number"),
    ("stop", "", "none of them empty"),
    ("stop", ["a", ""], "none of them empty"),
    ("stop", ["a", 3], "list of strings"),
    ("stop", b"a", "list of strings"),
    ("stop", {"a"}, "list of strings"),
    ("stop", None, "list of strings"),
    ("stop", "\udcff", "as UTF-8"),
    ("stop_token_ids", 2, "a list of token ids"),
    ("stop_token_ids", "2", "a list of token ids"),
    ("stop_token_ids", [-1], "at least 0"),
    ("stop_token_ids", [2, 2.5], "a whole number"),
    ("ignore_eos", 1, "True or False"),
    ("ignore_eos", None, "True or False"),
    ("logprobs", -1, "from 0 to 20"),
    ("logprobs", MAX_LOGPROBS + 1, "from 0 to 20"),
    ("logprobs", True, "a whole number"),
]


@pytest.mark.parametrize(("field", "value", "allowed"), REFUSED, ids=[f"{f}={v!r:.20}" for f, v, _ in REFUSED])
def test_a_value_out_of_range_is_refused_in_one_sentence_with_the_field_the_value_and_the_range(field, value, allowed):
    with pytest.raises(InputError) as refusal:
        SamplingParams(**{field: value})
    sentence = str(refusal.value)
    assert field in sentence, "the sentence must name the field"
    assert allowed in sentence, "the sentence must say what is allowed"
    assert sentence.endswith("."), "one whole sentence"
    assert "\n" not in sentence, "one line"
    shown = value
    if isinstance(value, dict):  # a bad entry is named by itself, by its key or by its value
        (key, bias), *_ = value.items()
        shown = key if not isinstance(key, int) or isinstance(key, bool) or key < 0 else bias
    elif field == "stop_token_ids" and isinstance(value, list):
        shown = value[-1]
    assert repr(shown)[:8] in sentence, "the sentence must show the value"


@pytest.mark.parametrize(
    "accepted",
    [
        {"max_tokens": 1},
        {"temperature": 0},
        {"temperature": 1e-320},
        {"temperature": Fraction(1, 2)},
        {"top_k": 10**9},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"min_p": 0},
        {"min_p": 1},
        {"repetition_penalty": 1e-3},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"logit_bias": {0: -100, 7: 100}},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"stop": " "},
        {"logprobs": 0},
        {"logprobs": MAX_LOGPROBS},
    ],
    ids=str,
)
def test_the_ends_of_every_range_are_accepted(accepted):
    params = SamplingParams(**accepted)
    for field, value in accepted.items():
        stored = getattr(params, field)
        assert stored == value or stored == (value,), f"{field} must keep its value"


def test_numpy_numbers_are_stored_as_python_numbers():
    params = SamplingParams(
        max_tokens=np.int64(5),
        temperature=np.float32(0.5),
        top_p=np.float64(0.25),
        stop_token_ids=[np.int32(3)],
        logit_bias={np.int64(1): np.float16(2)},
    )
    assert (type(params.max_tokens), type(params.temperature), type(params.top_p)) == (int, float, float)
    assert params == SamplingParams(max_tokens=5, temperature=0.5, top_p=0.25, stop_token_ids=[3], logit_bias={1: 2.0})
    assert type(params.stop_token_ids[0]) is int
    assert {(type(k), type(v)) for k, v in (params.logit_bias or {}).items()} == {(int, float)}
    with pytest.raises(InputError):
        SamplingParams(ignore_eos=np.bool_(True))


def test_different_ways_to_write_the_same_request_are_equal_and_hash_alike():
    one = SamplingParams(temperature=1, stop="end", stop_token_ids=[2, 3], logit_bias={1: 5, 2: -5})
    other = SamplingParams(temperature=1.0, stop=["end"], stop_token_ids=(2, 3), logit_bias={2: -5.0, 1: 5.0})
    assert one == other
    assert hash(one) == hash(other)
    assert SamplingParams(logit_bias={}) == SamplingParams()
    assert one != SamplingParams(temperature=1, stop="end", stop_token_ids=[2, 3], logit_bias={1: 5, 2: 5})


def test_nothing_that_the_caller_holds_can_change_the_params():
    bias, stop, ids = {1: 5.0}, ["end"], [2]
    params = SamplingParams(logit_bias=bias, stop=stop, stop_token_ids=ids)
    bias[1] = 9.0
    stop.append("more")
    ids.append(3)
    assert params == SamplingParams(logit_bias={1: 5.0}, stop=["end"], stop_token_ids=[2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        params.logit_bias[1] = 9.0  # type: ignore[index]


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)), dataclasses.replace],
    ids=["copy", "deepcopy", "pickle", "replace"],
)
def test_params_survive_being_copied_and_sent_to_another_process(duplicate):
    params = SamplingParams(temperature=0.5, stop=["a", "b"], logit_bias={3: 1.0, 1: -1.0}, seed=7)
    assert duplicate(params) == params


def test_a_changed_copy_is_checked_like_a_new_one():
    with pytest.raises(InputError, match="top_p"):
        dataclasses.replace(SamplingParams(), top_p=2.0)


def test_fields_are_given_by_name():
    with pytest.raises(TypeError):
        SamplingParams(32)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (SamplingParams(logit_bias={3: 1.0, 10: 1.0}), "logit_bias names token 10"),
        (SamplingParams(stop_token_ids=[0, 12]), "stop_token_ids names token 12"),
        (SamplingParams(logprobs=11), "logprobs is 11"),
    ],
)
def test_what_the_vocabulary_does_not_hold_is_refused(params, named):
    with pytest.raises(InputError, match=named):
        params.check_against_vocabulary(10)
    params.check_against_vocabulary(13)


def test_the_last_token_of_the_vocabulary_is_in_it():
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=[9], logprobs=10, top_k=99).check_against_vocabulary(10)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.fractions(),
    st.decimals(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    st.lists(st.one_of(st.integers(), st.text(), st.floats()), max_size=3),
    st.sets(st.integers(), max_size=2),
    st.dictionaries(st.one_of(st.integers(), st.text()), st.one_of(st.floats(), st.text()), max_size=2),
)


@given(field=st.sampled_from([f.name for f in dataclasses.fields(SamplingParams)]), value=ANYTHING)
def test_whatever_a_field_is_given_it_is_accepted_or_refused_with_input_error(field, value):
    try:
        params = SamplingParams(**{field: value})
    except InputError:
        return
    hash(params)
    assert dataclasses.replace(params) == params, "what was accepted once is accepted again"


def test_checking_params_does_not_need_torch():
    # So a command line refuses bad flags at once, not after the seconds that importing torch takes.
    code = "import sys, minillm.sampling_params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_sampler_hands_out_the_same_class():
    from minillm.sampler import SamplingParams as FromSampler

    assert FromSampler is SamplingParams
