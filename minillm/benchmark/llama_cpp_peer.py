"""llama.cpp on the same weights, driven as our own engine is: passes over ids, and the largest logit chosen.

Its own defaults are kept: keys and values in float16, flash attention where it chooses it (and it does, on a CPU),
passes of up to 512 tokens (`n_ubatch`), weights that it packs anew where it has a faster layout. Only the threads are
ours; and a second engine with the same file, `-fa off`, does without flash attention.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from minillm.benchmark.engine import EngineSpec
from minillm.benchmark.gguf_file import gguf_weight_bytes
from minillm.benchmark.llama_cpp_api import llama_cpp
from minillm.errors import InputError

KV_BYTES = 2  # float16


class LlamaCppEngine:
    """See `Engine`. `context` holds the prefilled sequence; a batch gets a context of its own, and copies in it."""

    compiled = False  # at run time, that is

    def __init__(self, spec: EngineSpec) -> None:
        self.api = api = llama_cpp()
        self.threads, self.flash_off = spec.threads, spec.flash_off
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(spec.path.encode(), params)
        if not self.model:
            raise InputError(f"llama.cpp cannot load {spec.path}")
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        weights = gguf_weight_bytes(spec.path)
        self.weight_bytes, self.pass_bytes = weights.all, weights.per_pass
        kv_size = 2 * api.llama_model_n_head_kv(self.model) * weights.head_dim
        self.kv_bytes_per_token = api.llama_model_n_layer(self.model) * kv_size * KV_BYTES
        self.context: Any = None

    @staticmethod
    def warm_up(spec: EngineSpec) -> None:
        """Load the library."""
        llama_cpp()

    def prefill(self, ids: Sequence[int], room: int) -> float:
        if self.context is not None:
            self.api.llama_free(self.context)
        self.context, self.ids, self.room = self._new_context(1, room), ids, room
        started = time.perf_counter()
        self.first = int(self._pass_prompt(self.context, ids).argmax())
        return time.perf_counter() - started

    def decode(self, batch: int, passes: int) -> float:
        context = self.context if batch == 1 else self._copies(batch)
        ids, length = [self.first] * batch, len(self.ids)
        started = time.perf_counter()
        for position in range(length, length + passes):
            self._pass(context, ids, [position] * batch, range(batch), wanted=range(batch))
            ids = [int(self._logits(context, row).argmax()) for row in range(batch)]
        seconds = time.perf_counter() - started
        if batch == 1:
            self._forget(context, 0)
        else:
            self.api.llama_free(context)
        return seconds

    def next_logits(self, ids: Sequence[int]) -> Float[np.ndarray, " vocab"]:
        context = self._new_context(1, len(ids))
        logits = self._pass_prompt(context, ids).copy()
        self.api.llama_free(context)
        return logits

    def _new_context(self, batch: int, room: int) -> Any:
        params = self.api.llama_context_default_params()
        params.n_ctx = batch * room  # shared out evenly among the sequences
        params.n_seq_max = batch
        params.n_threads = params.n_threads_batch = self.threads
        if self.flash_off:
            params.flash_attn_type = self.api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.longest_pass = params.n_batch
        context = self.api.llama_init_from_model(self.model, params)
        if not context:
            raise InputError(f"llama.cpp has no memory for {batch} x {room:,} tokens")
        return context

    def _copies(self, batch: int) -> Any:
        """A context in which every sequence is the one that was prefilled.

        It is prefilled again, for a context takes over no sequence from one that holds another number of them. The
        copies are made by the pass that follows: so there is one here, which is forgotten, and none is timed.
        """
        context = self._new_context(batch, self.room)
        self._pass_prompt(context, self.ids)
        for sequence in range(1, batch):
            self.api.llama_memory_seq_cp(self.api.llama_get_memory(context), 0, sequence, -1, -1)
        self._pass(context, [self.first] * batch, [len(self.ids)] * batch, range(batch), wanted=[])
        for sequence in range(batch):
            self._forget(context, sequence)
        return context

    def _forget(self, context: Any, sequence: int) -> None:
        """What a sequence holds behind the prompt."""
        memory = self.api.llama_get_memory(context)
        forgot = self.api.llama_memory_seq_rm(memory, sequence, len(self.ids), -1)
        assert forgot, "llama.cpp keeps what it was to forget"

    def _pass_prompt(self, context: Any, ids: Sequence[int]) -> Float[np.ndarray, " vocab"]:
        """All ids of sequence 0, in as few passes as it takes; the logits behind the last."""
        for start in range(0, len(ids), self.longest_pass):
            piece = ids[start : start + self.longest_pass]
            ends = start + len(piece) == len(ids)
            positions = range(start, start + len(piece))
            self._pass(context, piece, positions, [0] * len(piece), wanted=[len(piece) - 1] if ends else [])
        return self._logits(context, -1)

    def _pass(
        self,
        context: Any,
        ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        wanted: Sequence[int],
    ) -> None:
        """One call of its decode: an id, a position and a sequence per row; logits for the rows that are wanted."""
        batch = self.api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for row, (token_id, position, sequence) in enumerate(zip(ids, positions, sequences, strict=True)):
                batch.token[row], batch.pos[row] = token_id, position
                batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
                batch.logits[row] = row in wanted
            if code := self.api.llama_decode(context, batch):
                raise InputError(f"llama.cpp refused a pass of {len(ids)} tokens (code {code})")
        finally:
            self.api.llama_batch_free(batch)

    def _logits(self, context: Any, row: int) -> Float[np.ndarray, " vocab"]:
        """A view of its memory: valid until the next pass."""
        return np.ctypeslib.as_array(self.api.llama_get_logits_ith(context, row), shape=(self.vocab_size,))
