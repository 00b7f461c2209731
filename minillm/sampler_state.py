"""What one request's sampler remembers from step to step."""

import random
from collections import Counter
from collections.abc import Sequence

from minillm.sampling_params import SamplingParams


class SamplerState:
    """A request's own random numbers, and the tokens so far.

    The generator is Python's and runs on the CPU, so that a seed means the same on every device; and it
    belongs to one request alone, so that a request's tokens never depend on who shares its batch.
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int] = ()) -> None:
        # Python's generator drops a seed's sign; taken modulo 2**64, 1 and -1 remain two seeds.
        self._random = random.Random(None if params.seed is None else params.seed % 2**64)
        self.seen_token_ids: set[int] = set(prompt_token_ids)
        self.generated_counts: Counter[int] = Counter()

    def next_uniform(self) -> float:
        """The step's random number, in [0, 1). Every step takes one: the n-th token uses the n-th number."""
        return self._random.random()

    def observe(self, token_id: int) -> None:
        """Record a token of the completion. The caller does this once for every token that it keeps."""
        self.seen_token_ids.add(token_id)
        self.generated_counts[token_id] += 1
