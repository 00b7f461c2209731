"""config.json of real models: each field is used, neutral, ignored by name, or refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading.hf_architectures import ARCHITECTURES, IGNORED
from minillm.loading.hf_config import write_hf_config

CONFIGS = Path(__file__).parent / "recorded" / "configs"
LLAMA3_8 = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
YARN = RopeScaling("yarn", 4.0, original_max_position_embeddings=32768, attention_factor=0.1 * math.log(4.0) + 1.0)
LONGROPE = RopeScaling(
    "longrope",
    original_max_position_embeddings=4096,
    attention_factor=math.sqrt(1 + math.log(32) / math.log(4096)),
    short_factor=tuple(1 + 0.0625 * pair for pair in range(48)),
    long_factor=tuple(1 + 1.25 * pair for pair in range(48)),
)


def windowed(window: int, layers: int) -> dict[str, Any]:
    return {"sliding_window": window, "sliding_layers": tuple(range(layers))}


# The eight sizes in the order of ModelConfig, rms_norm_eps, rope_theta; then what is not as in a plain Llama.
EXPECTED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "llama-7b": ((32000, 4096, 11008, 32, 32, 32, 128, 2048, 1e-6, 1e4), {}),
    "llama-2-7b": ((32000, 4096, 11008, 32, 32, 32, 128, 4096, 1e-5, 1e4), {}),
    "llama-3-8b": ((128256, 4096, 14336, 32, 32, 8, 128, 8192, 1e-5, 5e5), {}),
    "llama-3.1-8b-instruct": ((128256, 4096, 14336, 32, 32, 8, 128, 131072, 1e-5, 5e5, LLAMA3_8), {}),
    "llama-3.2-1b": (
        (128256, 2048, 8192, 16, 32, 8, 64, 131072, 1e-5, 5e5, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192), True),
        {},
    ),
    "llama-3.3-70b-instruct": ((128256, 8192, 28672, 80, 64, 8, 128, 131072, 1e-5, 5e5, LLAMA3_8), {}),
    "deepseek-r1-distill-llama-8b": ((128256, 4096, 14336, 32, 32, 8, 128, 131072, 1e-5, 5e5, LLAMA3_8), {}),
    "smollm2-135m-instruct": ((49152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, 1e5, None, True), {}),
    "smollm3-3b": (
        (128256, 2048, 11008, 36, 16, 4, 128, 65536, 1e-6, 5e6, None, True),
        {"nope_layers": (3, 7, 11, 15, 19, 23, 27, 31, 35)},
    ),
    "tinyllama-1.1b-chat": ((32000, 2048, 5632, 22, 32, 4, 64, 2048, 1e-5, 1e4), {}),
    "yi-6b": ((64000, 4096, 11008, 32, 32, 4, 128, 4096, 1e-5, 5e6), {}),
    "mistral-7b-v0.1": ((32000, 4096, 14336, 32, 32, 8, 128, 32768, 1e-5, 1e4), windowed(4096, 32)),
    "mistral-7b-v0.3": ((32768, 4096, 14336, 32, 32, 8, 128, 32768, 1e-5, 1e6), {}),
    "mistral-nemo-instruct-2407": ((131072, 5120, 14336, 40, 32, 8, 128, 131072, 1e-5, 1e6), {}),
    "qwen2.5-0.5b": ((151936, 896, 4864, 24, 14, 2, 64, 32768, 1e-6, 1e6, None, True), {"qkv_bias": True}),
    "qwen2.5-7b-instruct-yarn": ((152064, 3584, 18944, 28, 28, 4, 128, 131072, 1e-6, 1e6, YARN), {"qkv_bias": True}),
    "deepseek-r1-distill-qwen-1.5b": ((151936, 1536, 8960, 28, 12, 2, 128, 131072, 1e-6, 1e4), {"qkv_bias": True}),
    "qwen3-0.6b": ((151936, 1024, 3072, 28, 16, 8, 128, 40960, 1e-6, 1e6, None, True), {"qk_norm": True}),
    "granite-3.1-2b-instruct": (
        (49155, 2048, 8192, 40, 32, 8, 64, 131072, 1e-5, 5e6, None, True),
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.015625,
            "logits_scaling": 8.0,
        },
    ),
    "phi-3-mini-4k-instruct": ((32064, 3072, 8192, 32, 32, 32, 96, 4096, 1e-5, 1e4), windowed(2047, 32)),
    "phi-3-mini-128k-instruct": (
        (32064, 3072, 8192, 32, 32, 32, 96, 131072, 1e-5, 1e4, LONGROPE),
        windowed(262144, 32),
    ),
}
TOKENS = {
    "llama-7b": (1, (2,)),
    "llama-3-8b": (128000, (128001,)),
    "llama-3.1-8b-instruct": (128000, (128001, 128008, 128009)),
    "llama-3.2-1b": (128000, (128001,)),
    "llama-3.3-70b-instruct": (128000, (128001, 128008, 128009)),
    "deepseek-r1-distill-llama-8b": (128000, (128001,)),
    "smollm3-3b": (None, (128012,)),
    "qwen2.5-0.5b": (151643, (151643,)),
    "qwen2.5-7b-instruct-yarn": (151643, (151645,)),
    "deepseek-r1-distill-qwen-1.5b": (151643, (151643,)),
    "qwen3-0.6b": (151643, (151645,)),
    "granite-3.1-2b-instruct": (0, (0,)),
    "phi-3-mini-4k-instruct": (1, (32000,)),
    "phi-3-mini-128k-instruct": (1, (32000,)),
}
each_model = pytest.mark.parametrize("name", EXPECTED)


def recorded(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))


def test_every_recorded_config_has_its_expected_values():
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(EXPECTED)


@each_model
def test_a_real_config_means_what_it_says(name: str):
    sizes, features = EXPECTED[name]
    bos, eos = TOKENS.get(name, (1, (2,)))
    assert ModelConfig.from_hf(recorded(name)) == ModelConfig(*sizes, **features, bos_token_id=bos, eos_token_ids=eos)


@each_model
def test_a_real_config_is_written_in_the_terms_of_its_own_architecture_or_of_plain_llama(name: str):
    config, fused = ModelConfig.from_hf(recorded(name)), recorded(name)["model_type"] == "phi3"
    written = write_hf_config(config, fused=fused)
    assert ModelConfig.from_hf(json.loads(json.dumps(written))) == config
    plain = not config.beyond_llama and not config.qkv_bias and not fused
    assert written["model_type"] == ("llama" if plain else recorded(name)["model_type"])


@each_model
def test_a_field_of_a_real_config_that_is_nonsense_is_refused(name: str):
    config = recorded(name)
    ignored = IGNORED | ARCHITECTURES[config["model_type"]].ignored
    for field in config.keys() - ignored:
        for nonsense in ({"no": "sense"}, -7, [[]]):
            with pytest.raises(InputError) as caught:
                ModelConfig.from_hf({**config, field: nonsense})
            assert "\n" not in str(caught.value), field


@each_model
def test_an_ignored_field_of_a_real_config_changes_nothing(name: str):
    config = recorded(name)
    ignored = IGNORED | ARCHITECTURES[config["model_type"]].ignored
    other = {field: {"no": "sense"} if field in ignored else value for field, value in config.items()}
    assert ModelConfig.from_hf(other) == ModelConfig.from_hf(config)


@each_model
def test_a_field_that_nobody_knows_is_refused_by_name(name: str):
    with pytest.raises(InputError, match=r"the field final_logit_softcapping = 30\.0 is not understood"):
        ModelConfig.from_hf({**recorded(name), "final_logit_softcapping": 30.0})


@pytest.mark.parametrize("name", [name for name in EXPECTED if recorded(name).get("rope_scaling")])
def test_a_rotary_setting_of_a_real_config_that_is_nonsense_is_refused(name: str):
    config = recorded(name)
    rope = config["rope_scaling"]
    for field in [*rope, "mrope_section"]:
        for nonsense in ({"no": "sense"}, -7, [[]], [1.0, -2.0]):
            with pytest.raises(InputError) as caught:
                ModelConfig.from_hf({**config, "rope_scaling": {**rope, field: nonsense}})
            assert "\n" not in str(caught.value), field


@pytest.mark.parametrize(
    "model_type",
    ["gemma", "gemma2", "gemma3", "gemma3_text", "mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "phi", "gpt2"],
)
def test_other_architectures_are_refused_in_one_sentence_that_says_what_is_supported(model_type: str):
    with pytest.raises(InputError) as caught:
        ModelConfig.from_hf({**recorded("llama-2-7b"), "model_type": model_type})
    assert str(caught.value) == (
        f"architecture '{model_type}' is not supported; supported: llama, mistral, qwen2, qwen3, granite, smollm3, phi3"
        " (dense text models of the Llama family)"
    )
