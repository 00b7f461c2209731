"""Graders of chapter 14: into 8 and 4 bits, out of them again, and how far two predictions are apart."""

from graders.ch14_back import DEQUANTIZED
from graders.ch14_divergence import KL_DIVERGENCE
from graders.ch14_int8 import QUANTIZE_INT8
from graders.ch14_nibbles import PACK_NIBBLES
from graders.ch14_q4_1 import QUANTIZE_Q4_1

GRADERS = {
    "14.1": QUANTIZE_INT8,
    "14.2": PACK_NIBBLES,
    "14.3": QUANTIZE_Q4_1,
    "14.4": DEQUANTIZED,
    "14.5": KL_DIVERGENCE,
}
