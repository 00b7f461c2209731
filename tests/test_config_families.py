"""config.json of every architecture: its defaults, its switches, and that what is written is read back."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading.hf_architectures import ARCHITECTURES
from minillm.loading.hf_config import write_hf_config

SIZES = {
    "vocab_size": 11,
    "hidden_size": 320,
    "intermediate_size": 13,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
}


def read(model_type: str, **fields: Any) -> ModelConfig:
    return ModelConfig.from_hf({"model_type": model_type, **SIZES, **fields})


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_field_that_is_left_out_has_the_value_that_transformers_gives_it(model_type: str):
    ours, theirs = read(model_type), AutoConfig.for_model(model_type, **SIZES)
    assert ours.num_key_value_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 10)
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.output_bias == getattr(theirs, "attention_bias", False)
    assert ours.mlp_bias == getattr(theirs, "mlp_bias", False)
    assert ours.sliding_window == (None if model_type.startswith("qwen") else getattr(theirs, "sliding_window", None))
    assert [int(layer not in ours.nope_layers) for layer in range(6)] == getattr(theirs, "no_rope_layers", [1] * 6)
    for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling"):
        assert getattr(ours, name) == getattr(theirs, name, 1.0)
    assert ours.attention_multiplier == getattr(theirs, "attention_multiplier", None)


def test_null_key_value_heads_are_as_many_as_heads_and_a_null_window_is_none():
    assert read("mistral").num_key_value_heads == 8
    assert read("mistral", num_key_value_heads=None).num_key_value_heads == 32
    assert read("mistral").sliding_window == 4096
    assert read("mistral", sliding_window=None).sliding_window is None


WINDOWED = {"use_sliding_window": True, "sliding_window": 5}
FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"sliding_window": 5}, ()),
        ({**WINDOWED, "max_window_layers": 4}, (4, 5)),
        ({**WINDOWED, "max_window_layers": 0}, (0, 1, 2, 3, 4, 5)),
        ({**WINDOWED, "max_window_layers": 6}, ()),
        ({**WINDOWED, "max_window_layers": 99}, ()),
        (WINDOWED, ()),
        ({**WINDOWED, "max_window_layers": 0, "layer_types": [FULL, SLIDING] * 3}, (1, 3, 5)),
        ({"sliding_window": None, "use_sliding_window": True, "max_window_layers": 0}, ()),
    ],
)
def test_qwen_has_its_window_where_transformers_has_it(
    model_type: str, fields: dict[str, Any], layers: tuple[int, ...]
):
    config = read(model_type, **fields)
    assert config.sliding_layers == layers
    assert config.sliding_window == (5 if layers else None)
    theirs = AutoConfig.for_model(model_type, **SIZES, **fields)
    assert tuple(layer for layer, kind in enumerate(theirs.layer_types) if kind == SLIDING) == layers


def test_smollm3_has_a_window_in_its_layers_without_rotation_if_it_is_switched_on():
    config = read("smollm3", **WINDOWED, no_rope_layers=[1, 0, 1, 1, 0, 1, 1])
    assert config.nope_layers == config.sliding_layers == (1, 4)
    assert read("smollm3", no_rope_layer_interval=3).nope_layers == (2, 5)


REFUSED = [
    ("qwen2", {"attention_bias": False}, "attention_bias = False is not supported (only True is)"),
    ("qwen2", {"layer_types": [SLIDING] * 6}, "layer_types names layers of sliding_attention, and there is no window"),
    ("qwen3", {"layer_types": [FULL] * 5}, "for each of the 6 layers"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 6}, "layer_types must have"),
    ("qwen3", {"max_window_layers": -1}, "max_window_layers must be a whole number"),
    ("mistral", {"attention_bias": True}, "attention_bias = True is not supported (only False is)"),
    ("mistral", {"mlp_bias": True}, "mlp_bias = True"),
    ("mistral", {"sliding_window": 0}, "sliding_window must be a positive integer"),
    ("mistral", {"layer_types": [FULL] * 6}, "the field layer_types = "),
    ("granite", {"embedding_multiplier": 0}, "embedding_multiplier must be a positive number"),
    ("granite", {"sliding_window": 5}, "sliding_window = 5 is not supported"),
    ("llama", {"embedding_multiplier": 12.0}, "the field embedding_multiplier = 12.0 is not understood"),
    ("smollm3", {"no_rope_layers": [1, 1, 1]}, "no_rope_layers must have a 0 or a 1 for each of the 6 layers"),
    ("smollm3", {"no_rope_layers": [1, 1, 1, 2, 1, 1]}, "no_rope_layers must have a 0 or a 1"),
    ("smollm3", {"no_rope_layers": [True] * 6}, "no_rope_layers must have a 0 or a 1"),
    ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor = 0.75"),
    ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not supported for phi3"),
    ("phi3", {"rope_scaling": {"type": "su", "long_factor": [1.0] * 5}}, "does not state 'short_factor'"),
    ("llama", {"rope_scaling": {"type": "su", "factor": 2.0}}, "rope type 'su' is not supported"),
    ("llama", {"rope_scaling": {"type": "dynamic"}}, "does not state 'factor'"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 1.0}}, "the field alpha = 1.0"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 0.5}}, "factor must be at least 1"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}}, "beta_slow (2.0)"),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate must be true or false"),
    ("llama", {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_theta above 1"),
    ("llama", {"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "head_dim of at least 4"),
    (
        "llama",
        {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [1.0] * 5}},
        "short_factor has 4 numbers, and a head of 10 has 5 pairs",
    ),
    (
        "llama",
        {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1.0, "x"], "long_factor": [1.0]}},
        "short_factor: 1 must be a positive number, got 'x'",
    ),
    (
        "phi3",
        {
            "original_max_position_embeddings": 1,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 5, "long_factor": [1.0] * 5},
        },
        "original_max_position_embeddings",
    ),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "the field full_attention"),
]


@pytest.mark.parametrize(("model_type", "fields", "words"), REFUSED, ids=[words[:50] for _, _, words in REFUSED])
def test_what_an_architecture_does_not_have_is_refused_in_one_sentence(model_type, fields, words):
    with pytest.raises(InputError) as caught:
        read(model_type, **fields)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rope", "attention_factor"),
    [
        ({}, 1.1386294361119891),
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 0.5}, 1.1386294361119891),  # counts with its partner only
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, 1.1386294361119891 / 1.0693147180559945),
        ({"beta_fast": None, "finetuned": True}, 1.1386294361119891),
    ],
)
def test_yarn_scales_queries_and_keys_as_its_paper_or_the_file_says(rope: dict[str, Any], attention_factor: float):
    stated = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, **rope}
    scaling = read("llama", rope_scaling=stated).rope_scaling
    assert scaling is not None
    assert scaling.attention_factor == pytest.approx(attention_factor)
    plain = RopeScaling("yarn", 4.0, original_max_position_embeddings=512)
    assert dataclasses.replace(scaling, attention_factor=1.0) == plain


def test_how_far_a_stretched_model_reaches():
    def context(model_type="llama", **fields) -> int:
        return read(model_type, max_position_embeddings=100, **fields).max_position_embeddings

    assert context(rope_scaling={"type": "linear", "factor": 4.0}) == 100
    assert context(rope_scaling={"type": "dynamic", "factor": 4.0}) == 400
    assert context(rope_scaling={"type": "yarn", "factor": 4.0}) == 400
    assert context(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50}) == 100


# --- written and read back -------------------------------------------------------------------------------------------

LAYERS, HEAD_DIM = 4, 6
some_layers = st.sets(st.integers(0, LAYERS - 1)).map(lambda layers: tuple(sorted(layers)))
number = st.floats(0.0625, 100)
original = st.integers(2, 4096)
scalings = st.one_of(
    st.none(),
    st.builds(lambda factor: RopeScaling("linear", factor), st.floats(1, 64)),
    st.builds(lambda factor, n: RopeScaling("llama3", factor, 1.0, 4.0, n), st.floats(1, 64), original),
    st.builds(
        lambda factor, n, truncate, scale: RopeScaling(
            "yarn", factor, original_max_position_embeddings=n, truncate=truncate, attention_factor=scale
        ),
        st.floats(1, 64),
        original,
        st.booleans(),
        number,
    ),
    st.builds(lambda n: RopeScaling("dynamic", 4.0, original_max_position_embeddings=n), original),
    st.builds(
        lambda n, short, long, scale: RopeScaling(
            "longrope",
            original_max_position_embeddings=n,
            short_factor=tuple(short),
            long_factor=tuple(long),
            attention_factor=scale,
        ),
        original,
        st.lists(number, min_size=3, max_size=3),
        st.lists(number, min_size=3, max_size=3),
        number,
    ),
)


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Features in any combination, most of which no single architecture has."""
    scaling = draw(scalings)
    context = 4 * scaling.original_max_position_embeddings if scaling and scaling.kind == "dynamic" else 65536
    layers = draw(st.one_of(st.just(()), some_layers, st.just(tuple(range(LAYERS)))))
    rarely = st.sampled_from([False, False, False, True])
    one = st.one_of(st.just(1.0), number) if draw(rarely) else st.just(1.0)
    bias = draw(rarely)
    return ModelConfig(
        *(11, 48, 13, LAYERS, 8, 2, HEAD_DIM, context),
        rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        rope_theta=draw(st.sampled_from([1e4, 5e6])),
        rope_scaling=scaling,
        tie_word_embeddings=draw(st.booleans()),
        qkv_bias=bias or draw(rarely),
        output_bias=bias,
        mlp_bias=draw(rarely),
        qk_norm=draw(rarely),
        sliding_window=draw(st.integers(1, 5000)) if layers else None,
        sliding_layers=layers,
        nope_layers=draw(some_layers) if draw(rarely) else (),
        embedding_multiplier=draw(one),
        residual_multiplier=draw(one),
        attention_multiplier=draw(st.one_of(st.none(), number)) if draw(rarely) else None,
        logits_scaling=draw(one),
        eos_token_ids=draw(st.sampled_from([(), (3,), (3, 5)])),
    )


@settings(max_examples=60, deadline=None)
@given(config=configs(), fused=st.booleans())
def test_a_config_is_written_so_that_it_reads_back_equal_or_is_refused(config: ModelConfig, fused: bool):
    try:
        written = json.loads(json.dumps(write_hf_config(config, fused=fused)))
    except InputError as error:
        assume("no architecture of transformers has what this model has" not in str(error))
        raise
    assert ModelConfig.from_hf(written) == config
    assert (written["model_type"] == "phi3") == fused
    theirs = AutoConfig.for_model(**written)
    assert (getattr(theirs, "head_dim", None) or 48 // 8) == HEAD_DIM
    assert theirs.rope_parameters["rope_type"] == (config.rope_scaling.kind if config.rope_scaling else "default")


def test_features_that_no_architecture_has_together_are_not_written():
    config = ModelConfig(11, 48, 13, LAYERS, 8, 2, HEAD_DIM, 64, qk_norm=True, nope_layers=(1,))
    with pytest.raises(InputError, match="no architecture of transformers has what this model has"):
        write_hf_config(config)


NONSENSE = [
    ({"sliding_window": 4}, "go together"),
    ({"sliding_layers": (1,)}, "go together"),
    ({"sliding_window": 0, "sliding_layers": (1,)}, "sliding_window must be positive"),
    ({"sliding_window": 4, "sliding_layers": (2, 1)}, "sliding_layers must be layers of 0 to 3"),
    ({"nope_layers": (4,)}, "nope_layers must be layers of 0 to 3"),
    ({"nope_layers": (1, 1)}, "each once"),
    ({"attention_multiplier": 0.0}, "attention_multiplier must be positive"),
    ({"logits_scaling": float("nan")}, "logits_scaling must be positive"),
    ({"residual_multiplier": float("inf")}, "residual_multiplier must be positive"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps must be positive"),
    ({"rope_scaling": RopeScaling("dynamic", 4.0, original_max_position_embeddings=64)}, "is factor x"),
]


@pytest.mark.parametrize(("changes", "words"), NONSENSE, ids=[str(changes) for changes, _ in NONSENSE])
def test_a_config_that_describes_no_model_cannot_be_made(changes: dict[str, Any], words: str):
    with pytest.raises(InputError) as caught:
        ModelConfig(11, 48, 13, LAYERS, 8, 2, HEAD_DIM, 64, **changes)
    assert words in str(caught.value)
