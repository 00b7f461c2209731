"""Our own engine, driven as `decode` drives it: by `prefill`, for the prompt and for every pass after it."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from minillm.benchmark.engine import EngineSpec
from minillm.benchmark.many.check import Checked, check
from minillm.benchmark.many.decode_curve import decode_together
from minillm.benchmark.many.serve import Served, Serving, serve
from minillm.benchmark.many.workload import Ask
from minillm.compiled import compile_decode, wants_compiled
from minillm.device import DTYPES, clock
from minillm.errors import InputError, MissingError
from minillm.kv_cache import KVCache, new_kv_cache
from minillm.loading import open_checkpoint
from minillm.loading.loader import load_model, tell_on_stderr
from minillm.loading.weight_formats import weight_formats
from minillm.machine.footprint import warm_up
from minillm.model import weight_bytes_per_pass
from minillm.native.build import native_library
from minillm.prefill import prefill
from minillm.sampler import likeliest


class MinillmEngine:
    """See `Engine`. It is loaded without its tokenizer: a model of random weights has none."""

    def __init__(self, spec: EngineSpec) -> None:
        self.device = torch.device(spec.device)
        checkpoint = open_checkpoint(Path(spec.path))
        formats = weight_formats(spec.quantize, checkpoint)
        self.model = load_model(checkpoint, device=self.device, dtype=DTYPES[spec.dtype], formats=formats)
        self.kv_dtype = torch.int8 if spec.kv_dtype == "int8" else self.model.dtype
        self.compiled = wants_compiled(spec.compile, spec.quantize) and compile_decode(
            self.model, _refuse if spec.compile else tell_on_stderr
        )
        self.vocab_size = self.model.config.vocab_size
        self.weight_bytes = self.model.nbytes
        self.pass_bytes = weight_bytes_per_pass(self.model)
        self.kv_bytes_per_token = self._new_cache(1, 1).bytes_per_token

    @staticmethod
    def warm_up(spec: EngineSpec) -> None:
        """Set up what is set up once, with a tiny model; and once for this machine, with the compiler."""
        torch.set_num_threads(spec.threads)
        warm_up()
        if wants_compiled(spec.compile, spec.quantize):
            with suppress(MissingError):
                native_library()

    def prefill(self, ids: Sequence[int], room: int) -> float:
        self.cache = self._new_cache(room, 1)
        started = clock(self.device)
        self.first = likeliest(prefill(self.model, ids, self.cache))  # [1]
        return clock(self.device) - started

    def decode(self, batch: int, passes: int) -> float:
        length = self.cache.length
        cache = self.cache if batch == 1 else self._copies(batch)
        ids = self.first.expand(batch)  # [B]
        started = clock(self.device)
        for _ in range(passes):
            ids = likeliest(prefill(self.model, ids[:, None], cache))  # [B]
        seconds = clock(self.device) - started
        cache.truncate(length)
        return seconds

    def decode_together(self, batch: int, context: int, steps: int) -> float:
        """Seconds for `steps` steps of our engine for many requests; see `decode_together`."""
        return decode_together(self.model, batch, context, steps)

    def serve(self, asks: Sequence[Ask], serving: Serving) -> Served:
        """A set of requests to its end, by the policy that is asked for."""
        return serve(self.model, asks, serving)

    def check(self, asks: Sequence[Ask], serving: Serving) -> Checked:
        """Whether their tokens are those of each request alone."""
        return check(self.model, asks, serving)

    def next_logits(self, ids: Sequence[int]) -> Float[np.ndarray, " vocab"]:
        return prefill(self.model, ids, self._new_cache(len(ids), 1))[0].float().cpu().numpy()

    def _new_cache(self, room: int, batch: int) -> KVCache:
        return new_kv_cache(self.model.config, room, batch, device=self.device, dtype=self.kv_dtype)

    def _copies(self, batch: int) -> KVCache:
        """A cache in which every sequence is the one that was prefilled."""
        held, length = self.cache, self.cache.length
        cache = self._new_cache(held.max_seq_len, batch)
        for own, one in zip(
            (cache.keys, cache.values, *cache.scales), (held.keys, held.values, *held.scales), strict=True
        ):
            own[:, :, :, :length] = one[:, :, :, :length]  # [L, B, Hkv, S, ...] from [L, 1, Hkv, S, ...]
        cache.advance(length)
        return cache


def _refuse(sentence: str) -> None:
    """Where --compile was said, figures without it would not be what was asked for."""
    raise InputError(sentence)
