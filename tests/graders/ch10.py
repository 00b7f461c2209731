"""Graders of chapter 10: parameters, quantized matrices, the cache, shares, the longest context, a prediction."""

from graders.ch10_bytes import KV_CACHE_BYTES, MATRIX_BYTES
from graders.ch10_fit import LARGEST_CONTEXT, PREDICT
from graders.ch10_shapes import NUM_PARAMS, SHARD

GRADERS = {
    "10.1": NUM_PARAMS,
    "10.2": MATRIX_BYTES,
    "10.3": KV_CACHE_BYTES,
    "10.4": SHARD,
    "10.5": LARGEST_CONTEXT,
    "10.6": PREDICT,
}
