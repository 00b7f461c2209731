"""ModelShape: parameter counts are exact."""

import pytest

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.machine.shape import ModelShape, num_active_params, num_params, shape_of
from minillm.model import Llama

SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("feature", ["qkv_bias", "output_bias", "mlp_bias", "qk_norm", None])
def test_the_count_is_that_of_the_model_itself(tied: bool, feature: str | None) -> None:
    config = ModelConfig(**SIZES, tie_word_embeddings=tied, **({feature: True} if feature else {}))
    model = Llama(config)
    assert num_params(shape_of(config)) == model.nbytes // model.dtype.itemsize


def test_the_count_of_experts_and_of_query_norms_is_that_of_transformers() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config
    from transformers import Qwen3ForCausalLM as Qwen3

    def count(model) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    mixtral = ModelShape(**SIZES, num_experts=4, num_experts_per_tok=2)
    assert num_params(mixtral) == count(MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)))
    assert num_params(ModelShape(**SIZES, qk_norm=True)) == count(Qwen3(Qwen3Config(**SIZES)))
    sizes = {**SIZES, "hidden_size": 60}  # Qwen2 takes head_dim from hidden_size
    assert num_params(ModelShape(**sizes, qkv_bias=True)) == count(Qwen2ForCausalLM(Qwen2Config(**sizes)))


def test_a_token_multiplies_by_the_head_but_not_by_the_embedding_and_only_by_its_own_experts() -> None:
    dense = ModelShape(**SIZES)
    assert num_active_params(dense) == num_params(dense) - 97 * 24
    assert num_active_params(ModelShape(**SIZES, tie_word_embeddings=True)) == num_active_params(dense)
    sparse = ModelShape(**SIZES, num_experts=4, num_experts_per_tok=1)
    assert num_active_params(sparse) == num_active_params(dense) + 3 * 24 * 4  # the router, in each layer


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"head_dim": 0}, "head_dim must be positive"),
        ({"num_key_value_heads": 4}, "share the key heads evenly"),
        ({"sliding_window": -1}, "sliding_window must be positive"),
        ({"num_experts_per_tok": 2}, "cannot exceed num_experts"),
    ],
)
def test_numbers_that_describe_no_model_are_refused(change: dict, told: str) -> None:
    with pytest.raises(InputError, match=told):
        ModelShape(**{**SIZES, **change})
