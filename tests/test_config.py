"""ModelConfig from config.json and from GGUF metadata: every field used, knowingly ignored, or refused by
name.
"""

import json
import math
import subprocess
import sys

import pytest
from checkpoints import gguf_metadata, hf_config
from transformers import AutoConfig, LlamaConfig

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading.gguf_config import read_gguf_config
from minillm.loading.hf_config import write_hf_config
from minillm.rope import inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
TENSORS = ["token_embd.weight", "output_norm.weight"]


def read(**changes) -> ModelConfig:
    return ModelConfig.from_hf(hf_config(**changes))


def read_gguf(tensor_names=TENSORS, **changes) -> ModelConfig:
    return ModelConfig.from_gguf(gguf_metadata(**changes), tensor_names)


def test_every_number_of_config_json_arrives_in_its_field():
    config = ModelConfig.from_hf(
        {
            "model_type": "llama",
            "vocab_size": 11,
            "hidden_size": 30,
            "intermediate_size": 13,
            "num_hidden_layers": 14,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "head_dim": 16,
            "max_position_embeddings": 17,
            "rms_norm_eps": 0.25,
            "rope_theta": 18,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "bos_token_id": 3,
            "eos_token_id": 4,
        }
    )
    expected = ModelConfig(
        11, 30, 13, 14, 15, 5, 16, 17, 0.25, 18.0, None, True, True, True, True, bos_token_id=3, eos_token_ids=(4,)
    )
    assert config == expected


@pytest.mark.parametrize("rope", [None, {"rope_type": "linear", "factor": 2.0}, LLAMA3])
def test_what_transformers_writes_is_read_with_the_same_meaning(tmp_path, rope):
    rope = {**(rope or {"rope_type": "default"}), "rope_theta": 75000.0}
    theirs = LlamaConfig(max_position_embeddings=16384, num_key_value_heads=8, rope_parameters=rope)
    theirs.save_pretrained(tmp_path)
    ours = ModelConfig.from_hf(json.loads((tmp_path / "config.json").read_text(encoding="utf-8")))
    for name in ("vocab_size", "hidden_size", "num_key_value_heads", "head_dim", "rms_norm_eps"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.rope_theta == 75000.0
    scaling = ours.rope_scaling
    assert (scaling.kind if scaling else "default") == rope["rope_type"]
    assert (scaling.factor if scaling else None) == rope.get("factor")


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rope_scaling_is_read_in_its_old_and_new_form(form, key):
    llama3 = {key if name == "rope_type" else name: value for name, value in LLAMA3.items()}
    assert read(**{form: llama3}).rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    assert read(**{form: {key: "linear", "factor": 3}}).rope_scaling == RopeScaling("linear", 3.0)
    assert read(**{form: {key: "default"}}).rope_scaling is None


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(11, 30, 13, 14, 15, 5, 16, 17),
        ModelConfig(11, 30, 13, 14, 15, 5, 16, 17, tie_word_embeddings=True, eos_token_ids=(3, 5), bos_token_id=0),
        ModelConfig(11, 30, 13, 14, 15, 5, 16, 17, rope_scaling=RopeScaling("linear", 2.0)),
        ModelConfig(11, 30, 13, 14, 15, 5, 16, 20000, rope_scaling=RopeScaling("llama3", 8.0, 1.5, 3.0, 64)),
        ModelConfig(11, 30, 13, 14, 15, 5, 16, 17, qkv_bias=True, output_bias=True, mlp_bias=True, eos_token_ids=(2,)),
    ],
)
def test_a_written_config_reads_back_equal_and_means_the_same_to_transformers(tmp_path, config):
    text = json.dumps(write_hf_config(config))
    assert ModelConfig.from_hf(json.loads(text)) == config
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    theirs = AutoConfig.from_pretrained(tmp_path)
    for name in ("head_dim", "num_key_value_heads", "tie_word_embeddings", "mlp_bias"):
        assert getattr(theirs, name) == getattr(config, name), name
    assert theirs.attention_bias == config.output_bias
    rope = theirs.rope_parameters
    assert rope["rope_theta"] == config.rope_theta
    assert rope["rope_type"] == (config.rope_scaling.kind if config.rope_scaling else "default")
    if config.rope_scaling and config.rope_scaling.kind == "llama3":
        assert rope["low_freq_factor"] == 1.5
        assert rope["original_max_position_embeddings"] == 64


def test_end_of_sequence_ids_of_both_files_are_united_and_sorted():
    assert ModelConfig.from_hf(hf_config(eos_token_id=7), {"eos_token_id": [9, 2]}).eos_token_ids == (2, 7, 9)
    assert ModelConfig.from_hf(hf_config(eos_token_id=[7, 9]), {"eos_token_id": 9}).eos_token_ids == (7, 9)
    assert ModelConfig.from_hf(hf_config(eos_token_id=None), {"eos_token_id": 0}).eos_token_ids == (0,)
    assert ModelConfig.from_hf(hf_config(eos_token_id=None), {}).eos_token_ids == ()


def test_absent_optional_fields_have_the_values_that_transformers_gives_them():
    names = ["num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings"]
    config = ModelConfig.from_hf({k: v for k, v in hf_config().items() if k not in names})
    theirs = LlamaConfig(hidden_size=256, num_attention_heads=4)
    assert config.num_key_value_heads == theirs.num_key_value_heads == 4
    assert config.head_dim == theirs.head_dim == 64
    assert config.rms_norm_eps == theirs.rms_norm_eps
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert config.tie_word_embeddings == theirs.tie_word_embeddings


REFUSED = [
    ({"model_type": "gemma2"}, "architecture 'gemma2' is not supported; supported: llama, mistral, qwen2, qwen3"),
    ({"model_type": None}, "model_type"),
    ({"vocab_size": None}, "vocab_size"),
    ({"hidden_size": "abc"}, "hidden_size must be a positive integer, got 'abc'"),
    ({"hidden_size": -8}, "hidden_size must be a positive integer, got -8"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"hidden_size": True}, "hidden_size must be a positive integer, got True"),
    ({"hidden_size": 256.0}, "hidden_size"),
    ({"hidden_size": 10**30}, "hidden_size"),
    ({"hidden_size": 255, "head_dim": None}, "hidden_size (255) is not a multiple of num_attention_heads"),
    ({"head_dim": 63}, "head_dim must be even"),
    ({"num_key_value_heads": 3}, "num_attention_heads (4) must be a multiple of num_key_value_heads (3)"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number, got nan"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
    ({"rope_theta": 0}, "rope_theta"),
    ({"rope_theta": 10**400}, "rope_theta"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
    ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
    ({"eos_token_id": "2"}, "eos_token_id"),
    ({"eos_token_id": [2, -1]}, "eos_token_id"),
    ({"eos_token_id": [[2]]}, "eos_token_id"),
    ({"bos_token_id": [1, 2]}, "bos_token_id"),
    ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported (only 'silu' is)"),
    ({"rope_interleaved": True}, "rope_interleaved = True"),
    ({"sliding_window": 4096}, "sliding_window = 4096"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"quantization_config": {}}, "quantization_config"),
    ({"attention_multiplier": 0.5}, "the field attention_multiplier = 0.5 is not understood"),
    ({"rope_scaling": {"type": "mrope", "factor": 2}}, "rope type 'mrope' is not supported"),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_scaling": {"type": "linear", "factor": -2}}, "factor"),
    ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
    ({"rope_scaling": {**LLAMA3, "attention_factor": 0.1}}, "attention_factor"),
    ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor (4.0) must be below"),
    ({"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "high_freq_factor"}}, "high_freq_factor"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}}, "rope_theta twice"),
    ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}}, "both"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_what_is_not_understood_raises_one_sentence_that_names_it(changes, words):
    with pytest.raises(InputError) as caught:
        read(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fields_without_consequence_are_accepted_whatever_they_say():
    ignored = {"architectures": ["X"], "torch_dtype": "bfloat16", "use_cache": False, "pad_token_id": 3}
    more = {
        "initializer_range": 0.5,
        "attention_dropout": 0.1,
        "pretraining_tp": 2,
        "transformers.js_config": {},
    }
    assert read(**ignored, **more) == read()


def test_gguf_metadata_gives_the_same_config_as_config_json():
    assert read_gguf() == read()


def test_gguf_decimals_are_those_that_were_meant():
    # A float32 holds 9.999999747378752e-06 for 1e-5.
    assert read_gguf(**{"llama__attention__layer_norm_rms_epsilon": 9.999999747378752e-06}).rms_norm_eps == 1e-5
    assert read_gguf(llama__rope__freq_base=1e37).rope_theta == 1e37


def test_gguf_states_by_its_tensors_whether_the_head_is_tied_and_biases_are_there():
    assert read_gguf().tie_word_embeddings
    assert not read_gguf([*TENSORS, "output.weight"]).tie_word_embeddings
    assert read_gguf([*TENSORS, "blk.0.attn_q.bias"]).qkv_bias
    assert not read_gguf([*TENSORS, "blk.0.attn_q.bias"]).output_bias
    assert read_gguf([*TENSORS, "blk.0.attn_output.bias"]).output_bias
    assert not read_gguf([*TENSORS, "blk.0.attn_q.bias"]).mlp_bias
    assert read_gguf([*TENSORS, "blk.0.ffn_up.bias"]).mlp_bias


def test_gguf_end_of_sequence_turn_and_message_are_united():
    config = read_gguf(tokenizer__ggml__eot_token_id=9, tokenizer__ggml__eom_token_id=5)
    assert config.eos_token_ids == (2, 5, 9)


def test_gguf_vocabulary_size_is_counted_where_it_is_not_stated():
    assert read_gguf(llama__vocab_size=None).vocab_size == read().vocab_size


def test_gguf_head_dim_is_read_where_it_is_not_the_quotient():
    changes = {"llama__attention__key_length": 32, "llama__attention__value_length": 32}
    assert read_gguf(**changes, llama__rope__dimension_count=32).head_dim == 32


def test_gguf_linear_rope_scaling_is_read():
    config = read_gguf(**{"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0})
    assert config.rope_scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize("key", ["llama__rope__scaling__factor", "llama__rope__scale_linear"])
def test_a_gguf_factor_without_a_rule_is_linear_as_it_always_was(key):
    assert read_gguf(**{key: 4.0}).rope_scaling == RopeScaling("linear", 4.0)
    assert read_gguf(**{key: 1.0}).rope_scaling is None


def test_gguf_yarn_is_read_as_config_json_states_it():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert read_gguf(**YARN) == read(rope_scaling=yarn)
    assert read_gguf(**YARN).max_position_embeddings == 512
    key = "llama__rope__scaling__"
    stated = {f"{key}yarn_beta_fast": 16.0, f"{key}yarn_beta_slow": 2.0, f"{key}yarn_attn_factor": 1.1}
    expected = read(rope_scaling={**yarn, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.1})
    assert read_gguf(**YARN, **stated, **{f"{key}original_context_length": 128}) == expected
    shorter = read_gguf(**YARN, **{f"{key}original_context_length": 32})
    assert shorter.max_position_embeddings == 128
    assert shorter.rope_scaling is not None
    assert shorter.rope_scaling.original_max_position_embeddings == 32


def test_gguf_longrope_is_read_with_and_without_its_name():
    long, short = [1.0 + pair for pair in range(32)], [1.0 + pair / 128 for pair in range(32)]
    tensors = {"rope_factors_long.weight": long, "rope_factors_short.weight": short}
    stated = {"llama__rope__scaling__original_context_length": 64, "llama__rope__scaling__attn_factor": 1.25}
    for name in ({}, {"llama__rope__scaling__type": "longrope"}):
        config = ModelConfig.from_gguf(gguf_metadata(**stated, **name), [*TENSORS, *tensors], tensors)
        assert config.rope_scaling == RopeScaling(
            "longrope",
            original_max_position_embeddings=64,
            attention_factor=1.25,
            short_factor=tuple(short),
            long_factor=tuple(long),
        )


def test_gguf_divisors_of_no_known_rule_are_kept_as_they_are():
    divisors = [1.0] * 20 + [3.0] * 12
    config = ModelConfig.from_gguf(gguf_metadata(), TENSORS, {"rope_freqs.weight": divisors})
    plain, scaled = inverse_frequencies(read_gguf()), inverse_frequencies(config)
    assert (plain / scaled).tolist() == pytest.approx(divisors)
    assert inverse_frequencies(config, 10_000).tolist() == scaled.tolist()
    assert config.rope_scaling is not None
    assert config.rope_scaling.attention_factor == 1.0


def other_gguf(architecture: str, **changes) -> ModelConfig:
    """The metadata of checkpoints.gguf_metadata, as another architecture has them; changes without its name."""
    renamed = {key.replace("llama.", f"{architecture}.", 1): value for key, value in gguf_metadata().items()}
    more = {f"{architecture}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return ModelConfig.from_gguf({**renamed, "general.architecture": architecture, **more}, TENSORS)


def test_a_gguf_window_holds_in_every_layer_where_it_can_be_known():
    for architecture in ("llama", "phi3"):
        config = other_gguf(architecture, attention__sliding_window=7)
        assert (config.sliding_window, config.sliding_layers) == (7, (0, 1))
        assert other_gguf(architecture, attention__sliding_window=0).sliding_window is None  # Phi-4 says so
    for architecture in ("qwen2", "qwen3", "smollm3"):
        assert other_gguf(architecture, attention__sliding_window=4096).sliding_window is None  # beyond the context
        with pytest.raises(InputError, match=f"{architecture}.attention.sliding_window = 7 is not supported: the file"):
            other_gguf(architecture, attention__sliding_window=7)


def test_gguf_granite_has_multipliers_and_a_switch_for_its_rotation():
    scales = {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0, "attention__scale": 0.015625}
    config = other_gguf("granite", **scales)
    assert (config.embedding_multiplier, config.residual_multiplier, config.logits_scaling) == (12.0, 0.22, 8.0)
    assert config.attention_multiplier == 0.015625
    assert other_gguf("granite", **{**scales, "attention__scale": 0.125}).attention_multiplier is None  # 1 / sqrt(64)
    assert config.nope_layers == ()
    assert other_gguf("granite", **scales, rope__scaling__finetuned=False).nope_layers == (0, 1)
    assert other_gguf("qwen2", rope__scaling__finetuned=False).nope_layers == ()
    with pytest.raises(InputError, match=r"granite\.logit_scale"):
        other_gguf("granite")


def test_gguf_smollm3_rotates_three_layers_of_four_whatever_the_file_says():
    assert other_gguf("smollm3", block_count=9).nope_layers == (3, 7)
    assert other_gguf("llama", block_count=9).nope_layers == ()


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_gguf_llama3_scaling_is_recognised_by_the_factors_that_llama_cpp_computes(factor):
    # As llama.cpp's converter computes them: by wavelength.
    low, high, original, dim, base = 1.0, 4.0, 8192, 64, 500000.0
    factors = []
    for pair in range(dim // 2):
        wavelength = 2 * 3.141592653589793 * base ** (2 * pair / dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    names = [*TENSORS, "rope_freqs.weight"]
    metadata = gguf_metadata(llama__rope__freq_base=base)
    config = ModelConfig.from_gguf(metadata, names, {"rope_freqs.weight": factors})
    assert config.rope_scaling == RopeScaling("llama3", factor, low, high, original)
    for wrong in ([f * 0.99 for f in factors], factors[:-1], [1.0] * (dim // 2 - 1) + [math.inf], []):
        with pytest.raises(InputError, match=r"rope_freqs\.weight does not hold 32 divisors"):
            ModelConfig.from_gguf(metadata, names, {"rope_freqs.weight": wrong})


NO_SCALING = {"llama__rope__scaling__type": "none"}
YARN = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}

REFUSED_GGUF = [
    ({"general__architecture": "gemma2"}, "architecture 'gemma2' is not supported; supported: llama, qwen2, qwen3"),
    ({"general__architecture": "qwen2moe"}, "architecture 'qwen2moe' is not supported"),
    ({"general__architecture": "phi2"}, "architecture 'phi2' is not supported"),
    ({"general__architecture": ["llama"]}, "architecture ['llama'] is not supported"),
    ({"general__type": "adapter"}, "general.type = 'adapter' is not supported: the file is not a model"),
    ({"split__count": 3}, "split.count = 3 is not supported: the file is one part of a model; join them"),
    ({"general__architecture": None}, "architecture None"),
    ({"llama__block_count": None}, "llama.block_count"),
    ({"llama__block_count": 0}, "llama.block_count"),
    ({"llama__attention__head_count_kv": [2, 2]}, "llama.attention.head_count_kv"),
    ({"llama__attention__head_count": 3}, "llama.embedding_length (256) is not a multiple"),
    ({"llama__attention__value_length": 32}, "llama.attention.value_length = 32"),
    ({"llama__rope__dimension_count": 32}, "llama.rope.dimension_count = 32"),
    ({"llama__expert_count": 8}, "llama.expert_count = 8"),
    ({"llama__rope__scaling__type": "ntk"}, "rope scaling 'ntk' is not supported; supported: none, linear, yarn"),
    ({"llama__rope__scaling__type": "linear"}, "linear rope scaling does not state llama.rope.scaling.factor"),
    ({"llama__rope__scaling__type": "yarn"}, "yarn rope scaling does not state llama.rope.scaling.factor"),
    ({"llama__rope__scaling__type": "longrope"}, "needs the tensors rope_factors_long.weight and rope_factors_short"),
    ({**NO_SCALING, "llama__rope__scaling__factor": 4.0}, "factor = 4.0 is not supported with rope scaling 'none'"),
    ({"llama__rope__scaling__attn_factor": 1.2}, "attn_factor = 1.2 is not supported with rope scaling 'none'"),
    ({**YARN, "llama__rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor = 0.5 is not supported (only 1.0 is)"),
    ({**YARN, "llama__rope__scaling__yarn_log_multiplier": 0.1}, "yarn_log_multiplier = 0.1 is not supported"),
    ({"llama__attention__sliding_window": -1}, "llama.attention.sliding_window must be a whole number, got -1"),
    ({"llama__attention__sliding_window_pattern": [True]}, "llama.attention.sliding_window_pattern = [True] is not"),
    ({"llama__attention__causal": False}, "llama.attention.causal = False is not supported (only True is)"),
    ({"llama__final_logit_softcapping": 30.0}, "llama.final_logit_softcapping = 30.0 is not supported"),
    ({"llama__attention__scale": 0.5}, "llama.attention.scale = 0.5 is not understood"),
    ({"llama__logit_scale": 0.5}, "llama.logit_scale = 0.5"),
    ({"llama__vocab_size": None, "tokenizer__ggml__tokens": None}, "llama.vocab_size"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED_GGUF, ids=[words for _, words in REFUSED_GGUF])
def test_gguf_metadata_that_is_not_understood_raises_one_sentence_that_names_it(changes, words):
    with pytest.raises(InputError) as caught:
        read_gguf_config(gguf_metadata(**changes), TENSORS, {})
    assert words in str(caught.value)


def test_reading_a_configuration_does_not_import_torch():
    code = (
        "import sys; from checkpoints_config import config; from minillm.config import ModelConfig; "
        "ModelConfig.from_hf(config); sys.exit('torch' in sys.modules)"
    )
    code = code.replace("from checkpoints_config import config; ", f"config = {hf_config()!r}; ")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, "torch was imported"


def test_a_config_shows_its_sizes_and_what_is_out_of_the_ordinary() -> None:
    plain = ModelConfig(11, 30, 13, 14, 15, 5, 16, 17, qk_norm=True, eos_token_ids=(2,))
    assert repr(plain) == (
        "ModelConfig(vocab_size=11, hidden_size=30, intermediate_size=13, num_hidden_layers=14, "
        "num_attention_heads=15, num_key_value_heads=5, head_dim=16, max_position_embeddings=17, qk_norm=True, "
        "eos_token_ids=(2,))"
    )
