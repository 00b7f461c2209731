"""10.1 and 10.4: what a shape consists of, and what one of several GPUs holds of it."""

from collections.abc import Callable
from dataclasses import fields, replace

from graders.common import REFUSED, formula, refusal
from minillm.errors import InputError
from minillm.exercises.compare import in_words
from minillm.exercises.grading import EXCEPTION, Case, Function, Grader, Mutant, Observation
from minillm.machine.shape import ModelShape

# vocabulary, hidden, intermediate, layers, heads, key/value heads, head_dim, context
LLAMA_2_13B = ModelShape(32000, 5120, 13824, 40, 40, 40, 128, 4096)
LLAMA_3_8B = ModelShape(128256, 4096, 14336, 32, 32, 8, 128, 8192)
LLAMA_3_70B = ModelShape(128256, 8192, 28672, 80, 64, 8, 128, 8192)
SMOLLM2_135M = ModelShape(49152, 576, 1536, 30, 9, 3, 64, 8192, tie_word_embeddings=True)
MIXTRAL_8X7B = replace(LLAMA_3_8B, vocab_size=32000, num_experts=8, num_experts_per_tok=2)
TOY = ModelShape(97, 24, 40, 3, 6, 2, 10, 512)  # six heads of 10 are 60, and not the hidden size of 24
_TOY = "3 layers, hidden 24, MLP 40, 6 query and 2 key/value heads of 10, vocabulary 97"

# --- 10.1 ------------------------------------------------------------------------------------------------------------


def _params(
    *,
    q_size: Callable[[ModelShape], int] = lambda s: s.num_attention_heads * s.head_dim,
    kv_heads: Callable[[ModelShape], int] = lambda s: s.num_key_value_heads,
    attention_matrices: tuple[int, int] = (2, 2),
    mlp_matrices: int = 3,
    experts: Callable[[ModelShape], int] = lambda s: s.num_experts,
    router: Callable[[ModelShape], int] = lambda s: s.num_experts if s.num_experts > 1 else 0,
    norms: int = 2,
    last_norm: int = 1,
    tables: Callable[[ModelShape], int] = lambda s: 1 if s.tie_word_embeddings else 2,
    layers: Callable[[ModelShape], int] = lambda s: s.num_hidden_layers,
) -> Callable[[ModelShape], int]:
    """A count with one part of it done otherwise."""

    def count(s: ModelShape) -> int:
        of_q, of_kv = attention_matrices
        rows = of_q * q_size(s) + of_kv * kv_heads(s) * s.head_dim + router(s) + norms
        rows += experts(s) * mlp_matrices * s.intermediate_size
        return (layers(s) * rows + last_norm + tables(s) * s.vocab_size) * s.hidden_size

    return count


def _one_by_one(s: ModelShape) -> int:
    """Every matrix of the model, one after the other."""
    q, kv = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
    layer = [(q, s.hidden_size), (kv, s.hidden_size), (kv, s.hidden_size), (s.hidden_size, q)]
    layer += 2 * [(1, s.hidden_size)]
    layer += s.num_experts * (2 * [(s.intermediate_size, s.hidden_size)] + [(s.hidden_size, s.intermediate_size)])
    layer += [(s.num_experts, s.hidden_size)] if s.num_experts > 1 else []
    rest = [(s.vocab_size, s.hidden_size), (1, s.hidden_size)]
    rest += [] if s.tie_word_embeddings else [(s.vocab_size, s.hidden_size)]
    return sum(rows * columns for rows, columns in s.num_hidden_layers * layer + rest)


# Wanted figures: the published counts, to the last parameter; of the toy, 3 x (24 x (120 + 40) + 3 x 24 x 40 + 48)
# + 24 + 2 x 97 x 24.
NUM_PARAMS = Grader(
    cases=[
        formula("Llama-2-13B", [LLAMA_2_13B], 13_015_864_320),
        formula("SmolLM2-135M (tied)", [SMOLLM2_135M], 134_515_008),
        formula("Llama-3-8B", [LLAMA_3_8B], 8_030_261_248),
        formula("Mixtral 8x7B (8 experts)", [MIXTRAL_8X7B], 46_702_792_704),
        formula(_TOY, [TOY], 3 * (24 * 160 + 3 * 24 * 40 + 48) + 24 + 2 * 97 * 24),
    ],
    mutants=[
        Mutant(
            _params(tables=lambda s: 2),
            "You count embedding and head twice where they are one table: mind tie_word_embeddings.",
        ),
        Mutant(
            _params(tables=lambda s: 1),
            "A table is missing: unless they are tied, the head is a matrix of its own, as large as the embedding.",
        ),
        Mutant(
            _params(tables=lambda s: 0),
            "The vocabulary is missing: embedding and head are weights too.",
        ),
        Mutant(
            _params(kv_heads=lambda s: s.num_attention_heads),
            "You give keys and values as many heads as queries. With grouped queries their projections are smaller.",
        ),
        Mutant(
            _params(q_size=lambda s: s.hidden_size),
            "You take hidden_size for the width of the queries. It is num_attention_heads * head_dim, which need not be"
            " the same.",
        ),
        Mutant(
            _params(attention_matrices=(1, 2)),
            "One matrix of attention is missing: beside q, k and v there is the projection of the heads' outputs back.",
        ),
        Mutant(
            _params(attention_matrices=(2, 1)),
            "Keys and values have a projection each.",
        ),
        Mutant(
            _params(mlp_matrices=2),
            "An MLP of this family has three matrices, gate, up and down: you count two.",
        ),
        Mutant(
            _params(experts=lambda s: 1),
            "You count one MLP per layer. Every expert has its own, and all of them are there.",
        ),
        Mutant(
            _params(experts=lambda s: s.num_experts_per_tok),
            "You count the experts that one token uses. Asked for is what the model consists of: all experts.",
        ),
        Mutant(
            _params(router=lambda s: 0),
            "The router is missing: where there are several experts, each layer has a matrix that chooses among them.",
        ),
        Mutant(
            _params(router=lambda s: s.num_experts),
            "You count a router in a dense model. With a single expert there is nothing to choose.",
        ),
        Mutant(
            _params(norms=1),
            "A norm is missing in each layer: one stands before attention and one before the MLP.",
        ),
        Mutant(
            _params(last_norm=0),
            "The norm before the head is missing.",
        ),
        Mutant(
            _params(layers=lambda s: 1),
            "You count one layer only.",
        ),
        Mutant(
            lambda s: float(_params()(s)),
            "The value is right, but it is a float. Parameters come in whole numbers.",
        ),
    ],
    alternatives=[_one_by_one, _params()],
)

# --- 10.4 ------------------------------------------------------------------------------------------------------------

_SIZES = [field.name for field in fields(ModelShape)]


def _sizes(shape: object) -> Observation:
    kind = "a ModelShape" if isinstance(shape, ModelShape) else in_words(shape)
    return {"the answer": kind, **{name: getattr(shape, name, None) for name in _SIZES}}


def _share(given: str, shape: ModelShape, gpus: int, **changed: int) -> Case:
    """A shape that can be shared out: all sizes are looked at, those in `changed` are not as they were."""
    return Case(
        f"{given}, {gpus} GPUs",
        lambda f: _sizes(f(shape, gpus)),
        lambda: {**_sizes(shape), **changed},
    )


def _refused(given: str, shape: ModelShape, gpus: int) -> Case:
    return Case(f"{given}, {gpus} GPUs", lambda f: refusal(f, shape, gpus), lambda: {EXCEPTION: REFUSED})


def _shard(
    *,
    refuses: Callable[[ModelShape, int], object] = lambda s, n: (
        s.num_attention_heads % n
        or s.intermediate_size % n
        or (s.num_key_value_heads % n and n % s.num_key_value_heads)
    ),
    error: type[Exception] = InputError,
    vocab: Callable[[int, int], int] = lambda v, n: -(-v // n),
    kv: Callable[[int, int], int] = lambda heads, n: max(1, heads // n),
    **others: str,
) -> Function:
    """A share with one thing done otherwise; `others` are sizes that are divided too."""

    def shard(s: ModelShape, n: int) -> ModelShape:
        if refuses(s, n):
            raise error("these sizes cannot be shared out evenly")
        sizes = {
            "vocab_size": vocab(s.vocab_size, n),
            "intermediate_size": s.intermediate_size // n,
            "num_attention_heads": s.num_attention_heads // n,
            "num_key_value_heads": kv(s.num_key_value_heads, n),
        }
        return replace(s, **sizes | {name: max(1, getattr(s, name) // n) for name in others})  # type: ignore[arg-type]

    return shard


def _built_anew(s: ModelShape, n: int) -> ModelShape:
    for size in (s.num_attention_heads, s.intermediate_size):
        if size % n:
            raise InputError(f"{size} does not divide by {n}")
    if s.num_key_value_heads >= n:
        if s.num_key_value_heads % n:
            raise InputError(f"{s.num_key_value_heads} key/value heads do not divide by {n}")
        kv_heads = s.num_key_value_heads // n
    else:
        if n % s.num_key_value_heads:
            raise InputError(f"{n} GPUs cannot hold {s.num_key_value_heads} key/value heads equally often")
        kv_heads = 1
    sizes = {field.name: getattr(s, field.name) for field in fields(s)}
    sizes |= {"vocab_size": (s.vocab_size + n - 1) // n, "intermediate_size": s.intermediate_size // n}
    sizes |= {"num_attention_heads": s.num_attention_heads // n, "num_key_value_heads": kv_heads}
    return ModelShape(**sizes)


_SIX_KV_HEADS = replace(TOY, num_attention_heads=12, num_key_value_heads=6, intermediate_size=48)
_MANY = "12 query and 6 key/value heads, MLP 48"

SHARD = Grader(
    cases=[
        _share(
            "Llama-3-70B",
            LLAMA_3_70B,
            4,
            vocab_size=32064,
            intermediate_size=7168,
            num_attention_heads=16,
            num_key_value_heads=2,
        ),
        _share(
            "Llama-3-70B",
            LLAMA_3_70B,
            16,
            vocab_size=8016,
            intermediate_size=1792,
            num_attention_heads=4,
            num_key_value_heads=1,
        ),
        _share(_TOY, TOY, 2, vocab_size=49, intermediate_size=20, num_attention_heads=3, num_key_value_heads=1),
        _share("Llama-2-13B", LLAMA_2_13B, 1),
        _share(
            "Mixtral 8x7B",
            MIXTRAL_8X7B,
            2,
            vocab_size=16000,
            intermediate_size=7168,
            num_attention_heads=16,
            num_key_value_heads=4,
        ),
        _refused("Llama-3-70B (64 query heads)", LLAMA_3_70B, 3),
        _refused("Llama-3-8B (32 query heads)", LLAMA_3_8B, 64),
        _refused("6 query and 2 key/value heads, but an MLP of 41", replace(TOY, intermediate_size=41), 2),
        _refused(_MANY, _SIX_KV_HEADS, 4),
    ],
    mutants=[
        Mutant(
            _shard(kv=lambda heads, n: heads // n),
            "With fewer key/value heads than GPUs you are left with none. Half a head cannot be held: each GPU holds a"
            " whole one, and several hold the same.",
        ),
        Mutant(
            _shard(kv=lambda heads, n: heads),
            "You leave all key/value heads on every GPU. They are shared out as the query heads are; that is how the"
            " cache gets smaller.",
        ),
        Mutant(
            _shard(
                refuses=lambda s, n: s.num_attention_heads % n or s.intermediate_size % n or s.num_key_value_heads % n
            ),
            "You refuse fewer key/value heads than GPUs. That can be done: several GPUs then hold the same head.",
        ),
        Mutant(
            _shard(refuses=lambda s, n: s.num_attention_heads % n or s.intermediate_size % n),
            "You do not look at the key/value heads: 6 of them on 4 GPUs can neither be shared out nor be held equally"
            " often.",
        ),
        Mutant(
            _shard(
                refuses=lambda s, n: (
                    s.num_attention_heads % n or (s.num_key_value_heads % n and n % s.num_key_value_heads)
                )
            ),
            "You do not look at the MLP: where its width does not divide, rows would be lost.",
        ),
        Mutant(
            _shard(refuses=lambda s, n: False),
            "You refuse nothing: where heads or the MLP do not divide, the remainder is lost without a word.",
        ),
        Mutant(
            _shard(error=ValueError),
            "You raise a ValueError. Raise minillm.errors.InputError: the command line tells its sentence to the user.",
        ),
        Mutant(
            _shard(vocab=lambda v, n: v // n),
            "You round the vocabulary down: with 97 tokens on 2 GPUs one of them would be nowhere. Round up.",
        ),
        Mutant(
            _shard(vocab=lambda v, n: v),
            "You leave embedding and head whole on every GPU. They are cut along the vocabulary.",
        ),
        Mutant(
            _shard(hidden_size="too"),
            "You divide hidden_size. A row goes from layer to layer in full, on every GPU.",
        ),
        Mutant(
            _shard(num_hidden_layers="too"),
            "You divide the layers. That is another way to share a model out, pipeline parallelism; here every GPU"
            " works on every layer.",
        ),
        Mutant(
            _shard(head_dim="too"),
            "You divide head_dim. Heads are shared out whole.",
        ),
        Mutant(
            _shard(num_experts="too"),
            "You divide the experts. That is expert parallelism; here every GPU holds a slice of each expert.",
        ),
    ],
    alternatives=[_built_anew, _shard()],
)
