"""10.2 and 10.3: bytes of quantized weights and of a cache."""

import math
from collections.abc import Callable
from dataclasses import replace

from graders.ch10_shapes import LLAMA_2_13B, LLAMA_3_8B, TOY
from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant
from minillm.machine.formats import FORMATS, WeightFormat
from minillm.machine.shape import ModelShape

# --- 10.2 ------------------------------------------------------------------------------------------------------------


def _matrix(name: str, rows: int, columns: int, want: int) -> Case:
    format = FORMATS[name]
    parts = [f"blocks of {format.block} in {format.block_bits} bits"]
    parts += [f"row_bits {format.row_bits}"] if format.row_bits else []
    parts += [f"matrix_bits {format.matrix_bits}"] if format.matrix_bits else []
    parts += [f"otherwise {format.otherwise}"] if format.otherwise else []
    return formula(f"{name} ({', '.join(parts)}); {rows} rows, {columns} columns", [format, rows, columns], want)


def _matrix_bytes(
    *,
    blocks: Callable[[int, int], int] = lambda columns, block: -(-columns // block),
    block_bits: Callable[[WeightFormat], int] = lambda w: w.block_bits,
    row_bits: Callable[[WeightFormat, int], int] = lambda w, rows: rows * w.row_bits,
    matrix_bits: Callable[[WeightFormat, int], int] = lambda w, rows: w.matrix_bits,
    hands_on: Callable[[WeightFormat, int], object] = lambda w, columns: columns % w.block,
    whole: Callable[[int], float] = lambda bits: -(-bits // 8),
) -> Function:
    """A count with one part of it done otherwise."""

    def count(w: WeightFormat, rows: int, columns: int) -> float:
        if w.otherwise and hands_on(w, columns):
            return count(FORMATS[w.otherwise], rows, columns)
        bits = rows * blocks(columns, w.block) * block_bits(w)
        return whole(bits + row_bits(w, rows) + matrix_bits(w, rows))

    return count


def _row_by_row(w: WeightFormat, rows: int, columns: int) -> int:
    if w.otherwise is not None and columns % w.block != 0:
        return _row_by_row(FORMATS[w.otherwise], rows, columns)
    bits = w.matrix_bits
    for _ in range(rows):
        bits += w.row_bits + sum(w.block_bits for _ in range(0, columns, w.block))
    return (bits + 7) // 8


# Wanted figures: blocks of a row x rows x bits of a block, and so on, over 8.
MATRIX_BYTES = Grader(
    cases=[
        _matrix("int4", 100, 14336, 744_800),  # 112 blocks x 100 x 532 bits
        _matrix("int4", 4, 100, 266),  # a block per row, short of 28 weights
        _matrix("int4", 1, 128, 67),  # 66.5
        _matrix("int4", 6, 130, 798),  # two blocks per row, the second with two weights
        _matrix("int8", 10, 96, 980),
        _matrix("fp8", 10, 96, 964),
        _matrix("q8_0", 2, 576, 1224),
        _matrix("q4_k", 5, 512, 1440),
        _matrix("q4_k", 5, 576, 1980),  # as q5_0: 18 blocks x 22 bytes x 5
    ],
    mutants=[
        Mutant(
            _matrix_bytes(block_bits=lambda w: w.block_bits // w.block * w.block),
            "You count the weights and not their scales: a block takes block_bits, which is more than `block` times"
            " the bits of a weight.",
        ),
        Mutant(
            _matrix_bytes(blocks=lambda columns, block: columns / block, whole=math.ceil),  # type: ignore[arg-type]
            "You count a part of a block for the weights that are left over at the end of a row. A block that is begun"
            " is stored whole, its scale and all.",
        ),
        Mutant(
            _matrix_bytes(blocks=lambda columns, block: columns // block),
            "You round the blocks of a row down, and weights are left over. The last block may be short, but it is"
            " there.",
        ),
        Mutant(
            lambda w, rows, columns: (
                (
                    _matrix_bytes()(w, 1, rows * columns)
                    if not (w.otherwise and columns % w.block)
                    else _matrix_bytes()(FORMATS[w.otherwise], rows, columns)
                )
                + (rows - 1) * w.row_bits // 8
            ),
            "You cut the matrix as a whole into blocks. A block does not go on in the next row: count the blocks of a"
            " row, then the rows.",
        ),
        Mutant(
            lambda w, rows, columns: _matrix_bytes(hands_on=lambda _w, _c: columns % _w.block)(w, columns, rows),
            "You have rows and columns exchanged: blocks lie along the rows, so it is `columns` that is cut.",
        ),
        Mutant(
            _matrix_bytes(row_bits=lambda w, rows: 0),
            "row_bits is missing: in some formats each row has a scale of its own.",
        ),
        Mutant(
            _matrix_bytes(row_bits=lambda w, rows: w.row_bits),
            "You count row_bits once. Every row has them.",
        ),
        Mutant(
            _matrix_bytes(matrix_bits=lambda w, rows: 0),
            "matrix_bits is missing: in some formats the matrix has a scale of its own.",
        ),
        Mutant(
            _matrix_bytes(matrix_bits=lambda w, rows: rows * w.matrix_bits),
            "You count matrix_bits for every row. The whole matrix shares them.",
        ),
        Mutant(
            _matrix_bytes(hands_on=lambda w, columns: False),
            "You never hand on to the format `otherwise`: where the columns are no multiple of the block, that one"
            " decides.",
        ),
        Mutant(
            _matrix_bytes(hands_on=lambda w, columns: True),
            "You always take the format `otherwise`. It stands in only where the columns are no multiple of the block.",
        ),
        Mutant(
            _matrix_bytes(whole=lambda bits: bits // 8),
            "You round down to whole bytes: the last bits need a byte too.",
        ),
        Mutant(
            _matrix_bytes(whole=lambda bits: bits),
            "Those are bits. A byte has eight.",
        ),
        Mutant(
            _matrix_bytes(whole=lambda bits: bits / 8),
            "You give back a fraction of a byte. Round up, and return an int.",
        ),
    ],
    alternatives=[_row_by_row, _matrix_bytes()],
)

# --- 10.3 ------------------------------------------------------------------------------------------------------------

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
_MISTRAL = replace(LLAMA_3_8B, vocab_size=32000, sliding_window=4096)
_WINDOW_50 = replace(TOY, sliding_window=50)
_TOY = "3 layers, 6 query and 2 key/value heads of 10"


def _kept(s: ModelShape, context: int, block: int) -> int:
    tokens = context if s.sliding_window is None else min(context, s.sliding_window)
    return -(-tokens // block) * block


def _cache_bytes(
    *,
    kept: Callable[[ModelShape, int, int], int] = _kept,
    both: int = 2,
    heads: Callable[[ModelShape], int] = lambda s: s.num_key_value_heads,
    layers: Callable[[ModelShape], int] = lambda s: s.num_hidden_layers,
    size: Callable[[str], int] = lambda dtype: _BYTES[dtype],
    batches: Callable[[int], int] = lambda batch: batch,
) -> Function:
    """A count with one part of it done otherwise."""

    def count(s: ModelShape, context: int, batch: int, dtype: str, block_size: int = 1) -> int:
        per_token = both * layers(s) * heads(s) * s.head_dim * size(dtype)
        return per_token * kept(s, context, block_size) * batches(batch)

    return count


def _sum_rounded(s: ModelShape, context: int, batch: int, dtype: str, block_size: int = 1) -> int:
    tokens = batch * (context if s.sliding_window is None else min(context, s.sliding_window))
    return _cache_bytes(kept=lambda *_: -(-tokens // block_size) * block_size, batches=lambda b: 1)(s, 1, 1, dtype)


def _block_by_block(s: ModelShape, context: int, batch: int, dtype: str, block_size: int = 1) -> int:
    total = 0
    for _ in range(batch):
        left = min(context, s.sliding_window or context)
        while left > 0:
            total += 2 * s.num_hidden_layers * block_size * s.num_key_value_heads * s.head_dim * _BYTES[dtype]
            left -= block_size
    return total


# Wanted figures: bytes per token x kept tokens x sequences; a token of the toy is 2 x 3 x 2 x 10 = 120 numbers.
KV_CACHE_BYTES = Grader(
    cases=[
        formula("Llama-2-13B; context 4096, batch 32, bfloat16", [LLAMA_2_13B, 4096, 32, "bfloat16"], 107_374_182_400),
        formula(
            "Llama-3-8B; context 100, batch 3, float16, block_size 16", [LLAMA_3_8B, 100, 3, "float16", 16], 44_040_192
        ),
        formula(f"{_TOY}; context 32, batch 5, float32, block_size 16", [TOY, 32, 5, "float32", 16], 480 * 32 * 5),
        formula(f"{_TOY}; context 7, batch 1, int8, block_size left out", [TOY, 7, 1, "int8"], 120 * 7),
        formula(
            "Mistral 7B v0.1, window 4096; context 32768, batch 2, bfloat16, block_size 16",
            [_MISTRAL, 32768, 2, "bfloat16", 16],
            2 * 536_870_912,
        ),
        formula(
            f"{_TOY}, window 50; context 80, batch 3, bfloat16, block_size 16",
            [_WINDOW_50, 80, 3, "bfloat16", 16],
            240 * 64 * 3,
        ),
        formula(
            f"{_TOY}, window 50; context 30, batch 3, bfloat16, block_size 8",
            [_WINDOW_50, 30, 3, "bfloat16", 8],
            240 * 32 * 3,
        ),
    ],
    mutants=[
        Mutant(
            _cache_bytes(kept=lambda s, context, block: -(-context // block) * block),
            "You keep every token of a model that looks back over a window only: what is older is never read again.",
        ),
        Mutant(
            _cache_bytes(kept=lambda s, context, block: -(-(s.sliding_window or context) // block) * block),
            "You reserve the whole window for a sequence that is shorter than it.",
        ),
        Mutant(
            _cache_bytes(kept=lambda s, context, block: min(-(-context // block) * block, s.sliding_window or 10**9)),
            "You round to whole blocks first and cut at the window then. The window need not end where a block does,"
            " and the last block is there as a whole.",
        ),
        Mutant(
            _cache_bytes(kept=lambda s, context, block: min(context, s.sliding_window or context)),
            "block_size changes nothing in your answer: a sequence takes whole blocks.",
        ),
        Mutant(
            _cache_bytes(kept=lambda s, context, block: min(context, s.sliding_window or context) // block * block),
            "You round the blocks down: the last tokens would have no place.",
        ),
        Mutant(
            _cache_bytes(
                kept=lambda s, context, block: (min(context, s.sliding_window or context) // block + 1) * block
            ),
            "One block too many where the tokens fill the last one to the end.",
        ),
        Mutant(
            _sum_rounded,
            "You round the sum of all sequences. A block belongs to one sequence, so each is rounded up by itself.",
        ),
        Mutant(
            _cache_bytes(both=1),
            "You count keys or values. Both are kept.",
        ),
        Mutant(
            _cache_bytes(heads=lambda s: s.num_attention_heads),
            "You count the query heads. Only key/value heads are kept.",
        ),
        Mutant(
            _cache_bytes(layers=lambda s: 1),
            "You count one layer. Each has keys and values of its own.",
        ),
        Mutant(
            _cache_bytes(size=lambda dtype: 2),
            "You take two bytes for every number, whatever the dtype.",
        ),
        Mutant(
            _cache_bytes(batches=lambda batch: 1),
            "You leave the batch out: every sequence keeps its own.",
        ),
    ],
    alternatives=[_block_by_block, _cache_bytes()],
)
