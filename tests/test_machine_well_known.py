"""The shapes of well-known models: what follows from them is what was published, to the last parameter and byte."""

import pytest

from minillm.machine.formats import FORMATS
from minillm.machine.memory import weight_bytes
from minillm.machine.shape import num_params
from minillm.machine.well_known import BY_NAME, WELL_KNOWN

# The hub's `safetensors.total` of each model. Those of Llama 2 count, beside the parameters, 64 rotary frequencies per
# layer that old checkpoints store: 13,015,866,880 for the 13B, 40 x 64 more than it has weights.
PARAMETERS = {
    "llama-2-7b": 6_738_417_664 - 32 * 64,
    "llama-2-13b": 13_015_866_880 - 40 * 64,
    "llama-2-70b": 68_976_653_312 - 80 * 64,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}

# `metadata.total_size` of the published model.safetensors.index.json: bytes of all tensors, in bfloat16.
PUBLISHED_BYTES = {
    "llama-3.1-8b": 16_060_522_496,
    "llama-3.1-70b": 141_107_412_992,
    "mistral-7b-v0.1": 14_483_464_192,
    "mixtral-8x7b": 93_405_585_408,
    "qwen2.5-3b": 6_171_877_376,
    "qwen2.5-7b": 15_231_233_024,
    "qwen3-8b": 16_381_470_720,
}


@pytest.mark.parametrize("model", WELL_KNOWN, ids=lambda model: model.name)
def test_every_model_has_as_many_parameters_as_published(model) -> None:
    assert num_params(model.shape) == PARAMETERS[model.name]


@pytest.mark.parametrize("name", PUBLISHED_BYTES)
def test_the_weights_take_as_many_bytes_as_the_published_files(name: str) -> None:
    assert weight_bytes(BY_NAME[name].shape, FORMATS["bfloat16"]) == PUBLISHED_BYTES[name]


def test_no_two_models_share_a_name_and_hub_ids_are_found_in_any_case() -> None:
    assert len(BY_NAME) == 2 * len(WELL_KNOWN)
    assert BY_NAME["meta-llama/llama-2-13b-hf"].name == "llama-2-13b"


def test_the_default_model_is_built_in_with_the_shape_that_its_own_config_states() -> None:
    shape = BY_NAME["smollm2-135m"].shape
    assert (shape.num_hidden_layers, shape.num_key_value_heads, shape.head_dim) == (30, 3, 64)
    assert shape.tie_word_embeddings
