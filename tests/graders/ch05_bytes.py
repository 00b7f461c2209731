"""5.1 and 5.7: what a token of cache weighs, and how many fit."""

import torch

from graders.common import formula
from minillm.config import ModelConfig
from minillm.exercises.grading import Grader, Mutant


def _config(layers: int, heads: int, kv_heads: int, head_dim: int, hidden: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=107,
        hidden_size=hidden,
        intermediate_size=80,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=96,
    )


SMOLLM2_135M = _config(30, 9, 3, 64, 576)
LLAMA_2_13B = _config(40, 40, 40, 128, 5120)
WIDE_HEADS = _config(3, 6, 2, 10, 48)  # head_dim is not hidden_size / num_attention_heads, which would be 8

_SMOL = "SmolLM2-135M: 30 layers, 9 query heads, 3 key/value heads, head_dim 64"
_LLAMA = "Llama-2-13B: 40 layers, 40 query heads, 40 key/value heads, head_dim 128"
_WIDE = "3 layers, 6 query heads, 2 key/value heads, head_dim 10, hidden_size 48"

_NO_SUCH_FIELD = "AttributeError: 'ModelConfig' object has no attribute"

# Wanted figures are worked by hand: 2 x layers x key/value heads x head_dim x bytes of a number.
BYTES_PER_TOKEN = Grader(
    cases=[
        formula(f"{_SMOL}; bfloat16", [SMOLLM2_135M, torch.bfloat16], 23_040),
        formula(f"{_WIDE}; float32", [WIDE_HEADS, torch.float32], 480),
        formula(f"{_LLAMA}; float16", [LLAMA_2_13B, torch.float16], 819_200),
        formula(f"{_SMOL}; int8", [SMOLLM2_135M, torch.int8], 11_520),
    ],
    mutants=[
        Mutant(
            lambda c, dtype: c.num_hidden_layers * c.num_key_value_heads * c.head_dim * dtype.itemsize,
            "Half is missing: a token leaves a key *and* a value in each layer.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * dtype.itemsize,
            "You count the query heads. Queries are not kept; with grouped-query attention there are fewer key/value"
            " heads than query heads, and only those are in the cache.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_hidden_layers * c.hidden_size * dtype.itemsize,
            "You take hidden_size for the width of K and V. That holds only where every query head has a key head of"
            " its own (multi-head attention): use num_key_value_heads x head_dim.",
        ),
        Mutant(
            lambda c, dtype: (
                2
                * c.num_hidden_layers
                * c.num_key_value_heads
                * (c.hidden_size // c.num_attention_heads)
                * dtype.itemsize
            ),
            "You compute head_dim as hidden_size / num_attention_heads. Some models choose it freely; the config says"
            " what it is: config.head_dim.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_key_value_heads * c.head_dim * dtype.itemsize,
            "That is one layer. Every layer has keys and values of its own.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim,
            "You count numbers, not bytes: multiply by dtype.itemsize.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 2,
            "You take 2 bytes per number whatever the dtype. A float32 has 4, an int8 has 1: dtype.itemsize knows.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 4,
            "You take 4 bytes per number, those of a float32, whatever the dtype. A bfloat16 has 2, an int8 has 1:"
            " dtype.itemsize knows.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * dtype.itemsize * 8,
            "Those are bits. dtype.itemsize is in bytes already.",
        ),
        Mutant(
            lambda c, dtype: 2.0 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * dtype.itemsize,
            "The value is right, but it is a float. Bytes come in whole numbers: multiply ints, and divide with //.",
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_layers * c.num_kv_heads * c.head_dim * dtype.itemsize,
            "The config has no field of that name. The three that you need are num_hidden_layers, num_key_value_heads"
            " and head_dim; minillm/config.py lists all.",
            begins=_NO_SUCH_FIELD,
        ),
        Mutant(
            lambda c, dtype: 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * dtype.element_size(),
            "element_size() is a method of tensors. A dtype knows its bytes under another name: dtype.itemsize.",
        ),
    ],
    alternatives=[
        lambda c, dtype: sum(
            tensor.nbytes
            for _ in range(c.num_hidden_layers)
            for tensor in 2 * [torch.empty(c.num_key_value_heads, 1, c.head_dim, dtype=dtype)]
        ),
        lambda c, dtype: (
            c.head_dim * c.num_key_value_heads * c.num_hidden_layers * 2 * torch.empty((), dtype=dtype).nbytes
        ),
    ],
)


def _per_token(c: ModelConfig, dtype: torch.dtype) -> int:
    return 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * dtype.itemsize


# Wanted figures: the largest n with n x batch x bytes per token <= num_bytes, from the sizes above.
TOKENS_THAT_FIT = Grader(
    cases=[
        formula(
            f"26,000,000,000 bytes; {_LLAMA}; float16; batch_size 32", [26 * 10**9, LLAMA_2_13B, torch.float16, 32], 991
        ),
        formula(f"1,000,000 bytes; {_SMOL}; bfloat16; batch_size left out", [10**6, SMOLLM2_135M, torch.bfloat16], 43),
        formula(f"4,800 bytes, to the byte; {_WIDE}; float32; batch_size 5", [4800, WIDE_HEADS, torch.float32, 5], 2),
        formula(f"4,799 bytes; {_WIDE}; float32; batch_size 5", [4799, WIDE_HEADS, torch.float32, 5], 1),
        formula(f"400 bytes; {_WIDE}; float32: not even one token", [400, WIDE_HEADS, torch.float32, 1], 0),
        formula(  # above 2**24, where float32 no longer knows every whole number
            f"23,039,999 bytes, a byte less than 1,000 tokens need; {_SMOL}; bfloat16",
            [23_039_999, SMOLLM2_135M, torch.bfloat16],
            999,
        ),
    ],
    mutants=[
        Mutant(
            lambda b, c, dtype, n=1: b // _per_token(c, dtype),
            "You leave the batch out: the figure is for a single sequence. Every sequence keeps its own keys and"
            " values, so one more token each costs batch_size times the bytes.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: b // _per_token(c, dtype) * n,
            "You multiply by the batch. More users leave less for each: divide by batch_size.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: -(-b // (_per_token(c, dtype) * n)),
            "You round up. The last token would fit only in part.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: round(b / (_per_token(c, dtype) * n)),
            "You round to the nearest. A token that fits in part does not fit: round down, with //.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: b / (_per_token(c, dtype) * n),
            "You give back a fraction of a token. Whole tokens only: divide with //.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: (b - 1) // (_per_token(c, dtype) * n),
            "One too few where the tokens fill the memory to the byte: those fit.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: max(1, b // (_per_token(c, dtype) * n)),
            "Where not even one token fits, the answer is 0, not 1.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: (
                b // (2 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * dtype.itemsize * n)
            ),
            "You count the query heads in the bytes of a token. Only the key/value heads are kept; see 5.1.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: b // (2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 2 * n),
            "You take 2 bytes per number whatever the dtype. A float32 has 4, an int8 has 1: dtype.itemsize knows; see"
            " 5.1.",
        ),
        Mutant(
            lambda b, c, dtype, n=1: b // (2 * c.num_layers * c.num_kv_heads * c.head_dim * dtype.itemsize * n),
            "The config has no field of that name. minillm/config.py lists those it has; your 5.1 puts the right ones"
            " together already.",
            begins=_NO_SUCH_FIELD,
        ),
        Mutant(
            lambda b, c, dtype, n=1: int(torch.tensor(b, dtype=torch.float32) / (_per_token(c, dtype) * n)),
            "You compute in float32, which has 24 bits for a whole number: above 16,777,216 bytes it rounds, and at a"
            " boundary the answer is one off. Python's own int is exact at any size: divide with //.",
        ),
    ],
    alternatives=[
        lambda b, c, dtype, n=1: (b // n) // _per_token(c, dtype),
        lambda b, c, dtype, n=1: int(b / _per_token(c, dtype) / n),
    ],
)
