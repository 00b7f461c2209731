"""Exercises of chapter 14, *Quantization*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 14          grades this file and shows where you are
    pytest --ch 14.2        grades one exercise
    pytest --hint 14.2      the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --quantize int4 --mine      runs the engine on what you have finished

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

Letters used for sizes: a weight matrix is [out, in], one row per output; a group is 32 neighbours of a row.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from minillm.exercises import todo
from minillm.quantization import GROUP, NIBBLES, QuantizedWeight, unpack_nibbles  # noqa: F401 - here for you


# --- 14.1 ------------------------------------------------------------------------------------------------------------
def quantize_int8(weight: Float[Tensor, "out in"]) -> QuantizedWeight:
    """A matrix in whole numbers from -127 to 127, with one scale per row.

    weight: [out, in], float32 or a half precision. Compute in float32, whatever it is.

    Return `QuantizedWeight("int8", codes, scale)`: codes int8 [out, in], scale float32 [out], so that
    code * scale is as near to the weight as it can be. The largest magnitude of a row becomes 127 or -127; no code is
    -128. A row of zeros has codes 0. (Mind what it is divided by: 0 / 0 is nan, which no integer can hold.)

    About 4 lines.
    """
    todo("14.1")


# --- 14.2 ------------------------------------------------------------------------------------------------------------
def pack_nibbles(codes: UInt8[Tensor, "out in"]) -> UInt8[Tensor, "out half_in"]:
    """Codes of four bits, two to a byte.

    codes: uint8 [out, in], each 0 to 15; `in` is a multiple of 32. Return uint8 [out, in / 2].

    Each 32 codes become 16 bytes, in the order of llama.cpp's files. Of a group, code i (for i from 0 to 15) goes into
    the lower four bits of byte i, and code i + 16 into its upper four. So it is not neighbours that share a byte: the
    lower halves of 16 bytes, read together, are 16 consecutive codes.

    About 3 lines.
    """
    todo("14.2")


# --- 14.3 ------------------------------------------------------------------------------------------------------------
def quantize_q4_1(weight: Float[Tensor, "out in"]) -> QuantizedWeight:
    """A matrix in codes from 0 to 15, with a scale and a minimum for each 32 neighbours of a row.

    weight: [out, in], `in` a multiple of 32, float32 or a half precision. Compute in float32, whatever it is. A code
    stands for code * scale + minimum.

    The minimum is the group's smallest number, and the scale a fifteenth of the distance from its smallest to its
    largest; both are then rounded to float16, for so they are kept. Choose the codes for the *rounded* two: the nearest
    whole numbers, none below 0 or above 15. Where all numbers of a group are the same, the scale is 0 and so are the
    codes.

    (The engine refuses weights whose scale or minimum float16 cannot hold. Nothing so large comes here.)

    Return `QuantizedWeight("q4_1", packed, scale, minimum)`: packed uint8 [out, in / 2] as 14.2 packs it, scale and
    minimum float16 [out, in / 32]. You may call your 14.2 (or import the engine's from minillm.quantization).

    About 8 lines.
    """
    todo("14.3")


# --- 14.4 ------------------------------------------------------------------------------------------------------------
def dequantized(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "out in"]:
    """`QuantizedWeight.dequantized`: the numbers that the codes stand for.

    self is the matrix, and this function its method:

        self.format     "int8", "q8_0", "q4_1" or "q4_0"
        self.shape      (out, in), counted in weights
        self.codes      int8 [out, in]; of q4_1 and q4_0 uint8 [out, in / 2]: `unpack_nibbles` makes them [out, in]
        self.scale      int8: float32 [out]; the others: float16 [out, in / 32]
        self.minimum    q4_1: float16 [out, in / 32]; the others: None

        int8, q8_0      code * scale
        q4_1            code * scale + minimum
        q4_0            (code - 8) * scale        its codes are 0 to 15, too

    Compute in float32, and round to `dtype` once, at the end. The tensors belong to the model and stay as they are.
    They may be views with gaps between their rows. Return [out, in].

    About 10 lines.
    """
    todo("14.4")


# --- 14.5 ------------------------------------------------------------------------------------------------------------
def kl_divergence(reference: Float[Tensor, "rows vocab"], other: Float[Tensor, "rows vocab"]) -> Float[Tensor, " rows"]:
    """How far is what one model predicts from what another does? The Kullback-Leibler divergence, in nats.

    reference, other: raw logits [n, V] of the two models for the same n positions. Each row stands for a distribution:
    softmax gives p for the reference and q for the other. Return, for each row, the sum over the vocabulary of
    p (log p - log q), [n].

    Logits may be hundreds apart: the result is then large, but it is neither nan nor infinite.

    About 2 lines.
    """
    todo("14.5")
