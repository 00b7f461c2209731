"""`generate()` of transformers on the same weights, greedy, with its own defaults; tokens are timed as they come."""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.utils.logging import disable_progress_bar

from minillm.benchmark.engine import EngineSpec
from minillm.benchmark.many.serve import Served, Serving, served
from minillm.benchmark.many.workload import Ask
from minillm.device import DTYPES, clock


class TransformersEngine:
    """See `Engine`. The cache is the one that `generate` makes by itself; it is handed over to be used again."""

    compiled = False

    def __init__(self, spec: EngineSpec) -> None:
        self.device = torch.device(spec.device)
        self.model: Any = AutoModelForCausalLM.from_pretrained(spec.path, dtype=DTYPES[spec.dtype])
        self.model.to(self.device)
        # Version 5 renames it, and warns.
        forward = inspect.signature(self.model.forward).parameters
        self.cache_argument = "cache" if "cache" in forward else "past_key_values"
        config = self.model.config
        self.vocab_size = config.vocab_size
        self.weight_bytes = sum(parameter.nbytes for parameter in self.model.parameters())
        table = self.model.get_input_embeddings().weight.nbytes
        self.pass_bytes = self.weight_bytes - (0 if config.tie_word_embeddings else table)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        per_layer = 2 * config.num_key_value_heads * head_dim
        self.kv_bytes_per_token = config.num_hidden_layers * per_layer * DTYPES[spec.dtype].itemsize

    @staticmethod
    def warm_up(spec: EngineSpec) -> None:
        """Set up what is set up once, with a tiny model."""
        torch.set_num_threads(spec.threads)
        disable_progress_bar()
        tiny: Any = LlamaForCausalLM(
            LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
        )
        tiny.generate(torch.ones(1, 64, dtype=torch.long), do_sample=False, min_new_tokens=2, max_new_tokens=2)

    def prefill(self, ids: Sequence[int], room: int) -> float:
        """`room` is not asked for: its cache grows."""
        self.ids = torch.tensor([ids], device=self.device)  # [1, T]
        self.cache = DynamicCache()
        started = clock(self.device)
        self.ids, times = self._generate(self.ids, self.cache, 1)  # [1, T + 1], of which the cache holds T
        return times[0] - started

    def decode(self, batch: int, passes: int) -> float:
        held = self.ids.shape[1] - 1
        cache = self.cache
        if batch > 1:
            cache = copy.deepcopy(self.cache)
            cache.batch_repeat_interleave(batch)
        # The first of these passes is not counted: what `generate` prepares before it would be.
        _, times = self._generate(self.ids.repeat(batch, 1), cache, passes + 1)
        if batch == 1:
            cache.crop(held - cache.get_seq_length())  # a negative number of tokens: that many are removed
        return times[-1] - times[0]

    def serve(self, asks: Sequence[Ask], serving: Serving) -> Served:
        """Static batching: batches of `max_batch_size` in the order of arrival, padded on the left to their longest
        prompt, each until its longest answer is there. That is what `generate` does with a list of prompts.
        """
        started = clock(self.device)
        times: list[list[float]] = []
        for first in range(0, len(asks), serving.max_batch_size):
            batch = asks[first : first + serving.max_batch_size]
            came = [seconds - started for seconds in self._generate_padded(batch)]
            times += [came[: ask.new_tokens] for ask in batch]  # what was computed beyond that, nobody asked for
        return served(clock(self.device) - started, times)

    def _generate_padded(self, batch: Sequence[Ask]) -> list[float]:
        """The seconds on the clock at which each new token of the batch was there."""
        longest = max(len(ask.prompt_ids) for ask in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)  # [B, T]
        mask = torch.zeros_like(ids)  # [B, T]
        for row, ask in enumerate(batch):
            ids[row, longest - len(ask.prompt_ids) :] = torch.tensor(ask.prompt_ids)
            mask[row, longest - len(ask.prompt_ids) :] = 1
        new_tokens = max(ask.new_tokens for ask in batch)
        return self._generate(ids.to(self.device), DynamicCache(), new_tokens, mask.to(self.device))[1]

    def next_logits(self, ids: Sequence[int]) -> Float[np.ndarray, " vocab"]:
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids], device=self.device)).logits  # [1, T, V]
        return logits[0, -1].float().cpu().numpy()

    def _generate(
        self,
        ids: Int[Tensor, "batch length"],
        cache: Any,
        new_tokens: int,
        mask: Int[Tensor, "batch length"] | None = None,
    ) -> tuple[Int[Tensor, "batch longer"], list[float]]:
        """All ids, and the seconds on the clock at which each new token of the batch was there."""
        times = _Times(self.device)
        longer = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids) if mask is None else mask,
            pad_token_id=0,  # said, because it warns otherwise where a model has none
            **{self.cache_argument: cache},
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            stopping_criteria=StoppingCriteriaList([times]),
        )
        return longer, times.seconds


class _Times(StoppingCriteria):
    """Never stops; notes when each token was there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.seconds.append(clock(self.device))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
