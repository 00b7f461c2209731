"""A request: the tokens that there are, and how many of them have been computed. All else follows from these two.

There is no flag for prefill or decode. A step computes `token_ids[num_computed : num_computed + n]`, and a token is
sampled when that reaches the end. A long prompt in chunks, a prompt of which a prefix was found in the cache, a
request that lost its blocks and starts again: each is only another value of `num_computed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.sampler import Sampled
from minillm.sampler_state import SamplerState
from minillm.sampling_params import SamplingParams


@dataclass(eq=False)
class Request:
    """One request, from `Engine.add` until its finish_reason is set.

    max_length: tokens of prompt and completion that there may be at most. arrival: its place in the order of arrival.
    token_ids: the prompt, then what was generated. num_computed: how many of them have keys and values in the cache;
    those lie in the blocks of `block_table`, in this order. num_cached: prompt tokens that were found there at the
    last admission. num_preemptions: how often it lost its blocks. prompt_logprobs: what the model held of the prompt's
    tokens, where that was asked for, as far as it has been computed; of the first token, None. finish_reason: None,
    "stop", "length", "abort" or "error"; `error` then holds the sentence, and own_fault says whether the request's own
    parameters are the reason.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    max_length: int
    arrival: int = 0
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    num_cached: int = 0
    num_preemptions: int = 0
    prompt_logprobs: list[Sampled | None] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    own_fault: bool = False

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.sampler_state = SamplerState(self.params, self.prompt_ids)

    @property
    def num_generated(self) -> int:
        """Tokens of the completion so far."""
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def generated_ids(self) -> Sequence[int]:
        """The completion so far."""
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def needs_every_row(self) -> bool:
        """Whether the row of each token of its prompt has yet to be looked at: a cached prefix would be of no use."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt_ids)

    @property
    def num_to_compute(self) -> int:
        """Tokens without keys and values: 1 while it decodes, more while its prompt is read (or read again)."""
        return len(self.token_ids) - self.num_computed

    @property
    def most_tokens_held(self) -> int:
        """Tokens whose keys and values it can ever need at once: the last token is chosen, and never computed."""
        return max(1, self.max_length - 1)
