"""A model behind an API: its engine, and a word for its settings. What `minillm batch` and `minillm serve` share."""

import argparse
import hashlib
from importlib.metadata import version

from minillm.device import dtype_name
from minillm.engine.engine import Engine
from minillm.engine.log import Observer
from minillm.engine.offline import KV_BYTES, MAX_BATCH_SIZE
from minillm.llm import LLM

TOKEN_BUDGET = 512
"""Tokens in a pass at most, unless more requests than that run at a time."""


def new_engine(
    llm: LLM, max_batch_size: int | None = None, kv_bytes: int | None = None, observer: Observer | None = None
) -> Engine:
    """An engine for many requests. Raises InputError for sizes that are not possible."""
    size = MAX_BATCH_SIZE if max_batch_size is None else max_batch_size
    return Engine(
        llm.model,
        kv_bytes=kv_bytes or KV_BYTES,
        kv_dtype=llm.kv_dtype,
        max_batch_size=size,
        token_budget=max(TOKEN_BUDGET, size),
        observer=observer,
    )


def fingerprint(args: argparse.Namespace, llm: LLM) -> str:
    """What the answers depend on besides the requests, as one word: OpenAI's system_fingerprint."""
    settings = (version("minillm"), dtype_name(llm.model.dtype), dtype_name(llm.kv_dtype), args.quantize, args.compile)
    return "fp_" + hashlib.sha256(repr(settings).encode()).hexdigest()[:10]
