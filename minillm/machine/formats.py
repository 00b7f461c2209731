"""How many bytes a weight takes: the dtypes, and the quantized formats with the scales that they cannot do without.

A format of "4 bits" takes more than 4 bits: each group of weights has a scale of its own, some have a zero point, and
some tensors are not quantized at all. Which ones differs between two families:

    fp8, int8, int4    (what GPU servers load)  the projections of the layers are quantized; embedding, head, router,
                       norms and biases stay in 16 bit
    q8_0 ... q4_k      (GGUF, llama.cpp)        every matrix is quantized, in blocks along its rows; norms, biases and
                       the router stay in float32

Real GGUF files mix formats (a "Q4_K_M" has some tensors in Q6_K): give the file itself, and its tensors are counted.
Sources: `ggml-common.h` of llama.cpp for the blocks; the AWQ and GPTQ papers for groups of 128 with a zero point.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from minillm.errors import InputError

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
"""Bytes per number. float8 and int8 are for keys and values; weights of 8 bits are formats with scales, see below."""

COMPUTE_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class WeightFormat:
    """`block` consecutive weights of a row share `block_bits` bits, their scale and zero point among them.

    `row_bits` and `matrix_bits` are scales that a whole row or a whole matrix shares. `everywhere` says whether
    embedding and head are quantized too. `rest_bytes` is the size of a number that is not quantized. A matrix whose
    rows are no multiple of `block` is stored in the format `otherwise`, if there is one, else its last block is short
    of weights and takes the room of a whole one.
    """

    name: str
    block: int
    block_bits: int
    rest_bytes: int
    row_bits: int = 0
    matrix_bits: int = 0
    everywhere: bool = True
    otherwise: str | None = None

    @property
    def bits_per_weight(self) -> float:
        """Bits per quantized weight, in a long row: its share of the block's scale included."""
        return self.block_bits / self.block

    def block_of(self, columns: int) -> int:
        """How many weights lie in one block of a row of so many: a row can be cut between two blocks only."""
        return FORMATS[self.otherwise].block if columns % self.block and self.otherwise else self.block

    def matrix_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a quantized matrix [rows, columns]; blocks lie along the rows."""
        if columns % self.block and self.otherwise:
            return FORMATS[self.otherwise].matrix_bytes(rows, columns)
        blocks = -(-columns // self.block)  # rounded up
        bits = rows * (blocks * self.block_bits + self.row_bits) + self.matrix_bits
        return -(-bits // 8)


def _plain(name: str) -> WeightFormat:
    return WeightFormat(name, 1, 8 * DTYPE_BYTES[name], rest_bytes=DTYPE_BYTES[name])


def _gguf(name: str, block: int, block_bytes: int, otherwise: str | None = None) -> WeightFormat:
    return WeightFormat(name, block, 8 * block_bytes, rest_bytes=4, otherwise=otherwise)


FORMATS: Mapping[str, WeightFormat] = {
    format.name: format
    for format in (
        *(_plain(name) for name in COMPUTE_DTYPES),
        WeightFormat("fp8", 1, 8, rest_bytes=2, matrix_bits=32, everywhere=False),  # one float32 scale per matrix
        WeightFormat("int8", 1, 8, rest_bytes=2, row_bits=16, everywhere=False),  # one 16 bit scale per output channel
        _gguf("q8_0", 32, 34),  # 32 weights of 8 bits, a 16 bit scale
        _gguf("q6_k", 256, 210, "q8_0"),
        _gguf("q5_k", 256, 176, "q5_1"),
        _gguf("q5_1", 32, 24),
        _gguf("q5_0", 32, 22),
        WeightFormat("int4-g64", 64, 64 * 4 + 16 + 4, rest_bytes=2, everywhere=False),
        _gguf("q4_1", 32, 20),  # a scale and a smallest value, 16 bit each
        _gguf("q4_k", 256, 144, "q5_0"),
        _gguf("q4_0", 32, 18),  # 32 weights of 4 bits, a 16 bit scale
        WeightFormat("int4", 128, 128 * 4 + 16 + 4, rest_bytes=2, everywhere=False),  # scale 16 bit, zero point 4 bit
    )
}
QUANTIZATIONS = tuple(name for name in FORMATS if name not in COMPUTE_DTYPES)


def format_of(name: str) -> WeightFormat:
    """The format of this name. Raises InputError for one that is not known."""
    if name.lower() not in FORMATS:
        raise InputError(f"weights in {name!r} are not known; known: {', '.join(FORMATS)}")
    return FORMATS[name.lower()]


def dtype_bytes(name: str) -> int:
    """Bytes per number of a dtype. Raises InputError for one that is not known."""
    if name not in DTYPE_BYTES:
        raise InputError(f"the dtype {name!r} is not known; known: {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[name]
