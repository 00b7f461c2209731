"""The requests of a benchmark: random ids, lengths drawn from a range, all from one seed.

An answer's length is part of the request (`ignore_eos`): two engines that are set beside each other then do the same
work, whatever their models would have liked to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minillm.errors import InputError
from minillm.sampling_params import SamplingParams


@dataclass(frozen=True)
class Ask:
    """One request: a prompt of any ids, and exactly `new_tokens` to come."""

    prompt_ids: tuple[int, ...]
    new_tokens: int

    @property
    def params(self) -> SamplingParams:
        """Greedy, and past the end of the sequence."""
        return SamplingParams(max_tokens=self.new_tokens, ignore_eos=True)


@dataclass(frozen=True)
class Workload:
    """`count` requests. prompt, output: (least, most) tokens, drawn evenly. prefix: tokens before each prompt, the
    same in all requests. Plain values: a process that is given them makes the same requests.

    Raises InputError for a range that is none.
    """

    count: int
    prompt: tuple[int, int] = (5, 800)
    output: tuple[int, int] = (1, 200)
    prefix: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count < 2**20:
            raise InputError(f"a set of requests has at least 1 and fewer than 2^20 of them, not {self.count}")
        for name, (least, most) in (("prompts", self.prompt), ("outputs", self.output)):
            if not 1 <= least <= most < 2**31:
                raise InputError(f"the lengths of {name} go from at least 1 to at most, not from {least} to {most}")
        if not 0 <= self.prefix < 2**31:
            raise InputError(f"the tokens that all prompts begin with are 0 or more, not {self.prefix}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"the seed of the requests is 0 or more, and below 2^63, not {self.seed}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Workload":
        """From what `asdict` made, and JSON of that."""
        return cls(**{**values, "prompt": tuple(values["prompt"]), "output": tuple(values["output"])})

    @property
    def longest(self) -> int:
        """Tokens of prompt and output that a request may have."""
        return self.prefix + self.prompt[1] + self.output[1]

    def check_context(self, context: int) -> None:
        """Raises InputError where a request could outgrow the model's context."""
        if self.longest > context:
            raise InputError(
                f"requests of up to {self.longest:,} tokens are asked for, more than this model's context of "
                f"{context:,}: give shorter --prompts and --outputs"
            )

    def asks(self, vocab_size: int) -> list[Ask]:
        """The requests. The lengths are those of the seed, whatever the vocabulary."""
        lengths = np.random.default_rng(self.seed)
        prompts = lengths.integers(*self.prompt, self.count, endpoint=True).tolist()
        outputs = lengths.integers(*self.output, self.count, endpoint=True).tolist()
        ids = np.random.default_rng(self.seed + 1)
        shared = ids.integers(0, vocab_size, self.prefix).tolist()
        return [
            Ask((*shared, *ids.integers(0, vocab_size, prompt).tolist()), output)
            for prompt, output in zip(prompts, outputs, strict=True)
        ]
