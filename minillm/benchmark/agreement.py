"""Do two engines compute the same model? If not, comparing their speed means nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.benchmark.remote import RemoteEngine, Top

PROMPTS, PROMPT_TOKENS = 16, 16
CLEAR = {"float32": 0.05, "bfloat16": 0.25, "float16": 0.1}
"""From which gap on, in standard deviations of all logits, the likeliest id counts as clear, by dtype.

Measured on SmolLM2-135M against llama.cpp: in float32 no logit differed by more than 0.008, in bfloat16 by more than
0.13.
"""


@dataclass(frozen=True)
class Agreement:
    """Of the prompts after which our two likeliest ids were clearly apart, those where a peer chose as we did."""

    equal: int
    clear: int

    @property
    def verdict(self) -> str:
        """yes, no, or unknown where nothing was clear."""
        if not self.clear:
            return "unknown"
        return "yes" if self.equal == self.clear else "no"


def agreement(ours: RemoteEngine, peer: RemoteEngine) -> Agreement:
    """Compare the two on the same random ids."""
    pairs = [(ours.top(PROMPT_TOKENS, seed), peer.top(PROMPT_TOKENS, seed)) for seed in range(PROMPTS)]
    return count_equal(pairs, CLEAR[ours.spec.dtype])


def count_equal(pairs: Sequence[tuple[Top, Top]], clear: float) -> Agreement:
    """Pairs of (ours, the peer's) for the same ids. `clear` is in standard deviations of our logits."""
    judged = [(mine, its) for mine, its in pairs if mine.logits[0] - mine.logits[1] > clear * mine.std]
    return Agreement(sum(mine.ids[0] == its.ids[0] for mine, its in judged), len(judged))
