"""Exercises of chapter 10, *Will it fit?*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 10          grades this file and shows where you are
    pytest --ch 10.2        grades one exercise
    pytest --hint 10.2      the next hint; each call gives away a little more

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

All arithmetic: no tensors here, and every size is a whole number of bytes. A `ModelShape` has the sizes of a model
under the names of config.json (see minillm/machine/shape.py); a `Workload` says what is to be run, and a `Demand` is
the answer: weights, kv_cache, activations, overhead. Shapes of well-known models are in `minillm.machine.well_known`:
BY_NAME["llama-3-8b"].shape.
"""

from dataclasses import replace  # noqa: F401 - here for you

from minillm.errors import InputError  # noqa: F401 - here for you
from minillm.exercises import todo
from minillm.machine.formats import FORMATS, WeightFormat, dtype_bytes  # noqa: F401 - here for you
from minillm.machine.memory import Demand, Workload, demand  # noqa: F401 - here for you
from minillm.machine.shape import ModelShape
from minillm.machine.verdict import Question


# --- 10.1 ------------------------------------------------------------------------------------------------------------
def num_params(shape: ModelShape) -> int:
    """How many numbers does a model of this shape consist of?

    An embedding [vocab_size, hidden_size], and a head of the same size, unless `tie_word_embeddings`: then the two are
    one table. One norm (a vector of `hidden_size`) before the head. In each of `num_hidden_layers` layers:

    - the projections of queries, keys, values, and that of the heads' outputs back to `hidden_size`. Queries have
      `num_attention_heads` heads of `head_dim`, keys and values `num_key_value_heads`;
    - `num_experts` MLPs (1 in a dense model) of three matrices between `hidden_size` and `intermediate_size`;
    - where there is more than one expert, a router [num_experts, hidden_size] that chooses among them;
    - two norms.

    You are graded on shapes without biases and without norms on queries and keys.

    Llama-2-13B has 13,015,864,320. Return a whole number (int).

    About 8 lines.
    """
    todo("10.1")


# --- 10.2 ------------------------------------------------------------------------------------------------------------
def matrix_bytes(self, rows: int, columns: int) -> int:
    """`WeightFormat.matrix_bytes`: bytes of a quantized matrix of `rows` rows with `columns` weights each.

    self is the format, and this function its method:

        self.block          this many consecutive weights of a row form a block
        self.block_bits     bits of a whole block, its scale and zero point included
        self.row_bits       bits that each row needs besides, for a scale of its own (mostly 0)
        self.matrix_bits    bits that the matrix needs besides (mostly 0)
        self.otherwise      the name of a format that is used instead where `columns` is no multiple of `block`;
                            None where there is none

    Blocks lie along the rows and do not go on in the next row. Where the last block of a row is short of weights, it
    takes the room of a whole one. Where there is a format `otherwise`, that one decides:
    `FORMATS[self.otherwise].matrix_bytes(rows, columns)`. Return whole bytes, rounded up.

    About 5 lines.
    """
    todo("10.2")


# --- 10.3 ------------------------------------------------------------------------------------------------------------
def kv_cache_bytes(shape: ModelShape, context: int, batch: int, dtype: str, block_size: int = 1) -> int:
    """Bytes of the keys and values of `batch` sequences of `context` tokens each.

    dtype: of keys and values; `dtype_bytes(dtype)` gives the bytes of one number. block_size: tokens in a block of
    the cache. A block belongs to one sequence, and a sequence takes whole blocks.

    Where the shape has a `sliding_window`, no more than that many tokens of a sequence are kept (in whole blocks).
    It is None where every token is.

    Llama-2-13B, 4,096 tokens, batch 32, in bfloat16: 107,374,182,400. Return a whole number (int).

    About 5 lines.
    """
    todo("10.3")


# --- 10.4 ------------------------------------------------------------------------------------------------------------
def shard(shape: ModelShape, gpus: int) -> ModelShape:
    """What one of `gpus` GPUs holds under tensor parallelism, as a shape of its own.

    - Attention heads and the width of the MLP are shared out evenly.
    - So are key/value heads. Where there are fewer of them than GPUs, each GPU holds one whole head, and several hold
      the same one.
    - Embedding and head are cut along the vocabulary; where it cannot be cut evenly, shares are rounded up.
    - Everything else is on every GPU as it is: `hidden_size` too.

    Raise InputError, with a sentence, where the attention heads or the MLP do not divide by `gpus`, or where neither
    of `num_key_value_heads` and `gpus` is a multiple of the other.

    `replace(shape, vocab_size=...)` gives a shape with some sizes changed.

    About 12 lines.
    """
    todo("10.4")


# --- 10.5 ------------------------------------------------------------------------------------------------------------
def largest_context(question: Question) -> int:
    """The most tokens per sequence that fit, from 1 up to the model's `max_position_embeddings`; 0 where not even one
    does.

        question.shape                 the model's shape
        question.load                  the workload that was asked about: a frozen dataclass with a field `context`
        question.fits(load)            whether a workload fits. A longer context never needs less

    `replace(question.load, context=...)` gives the same workload with another context.

    Ask `question.fits` 30 times at most: a context may have a million tokens.

    About 6 lines.
    """
    todo("10.5")


# --- 10.6 ------------------------------------------------------------------------------------------------------------
def predict(shape: ModelShape, context: int, batch: int) -> Demand:
    """What a run of this model on a CPU should take, for `fit --measure` to be held against.

    The run: all numbers are float32, keys and values too. `batch` prompts of `context` tokens each go through the
    model in a single pass, all together, with nothing cut into chunks. The cache has room for just these tokens and
    knows no blocks. There is no GPU, so nothing is taken before the first tensor.

    `Workload` describes a run, and `demand(shape, load, overhead=...)` adds up what it takes. What they assume if you
    do not tell them is not what is so here:

        context, batch             tokens of each sequence, and how many of them there are (1)
        weights                    how weights are stored: FORMATS["bfloat16"]
        dtype, kv_dtype            of activations, and of keys and values: "bfloat16"
        block_size                 tokens in a block of the cache: 16
        tokens_per_pass            prompt tokens that one pass takes at most, of all sequences together: 2048
        gpus                       1
        overhead (of `demand`)     bytes taken before the first tensor: 512 MiB

    About 10 lines.
    """
    todo("10.6")
