"""6.3's model by rule, which computes nothing and remembers what it was asked to, and the oracle of what follows."""

import copy
import math
import random
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.model import Llama
from minillm.sampler import SamplingParams

# --- a model by rule -------------------------------------------------------------------------------------------------

VOCAB, MOST_STEPS = 23, 40
PROMPT = (3, 11, 6, 19, 8)


def config_with(*eos_token_ids: int, context: int) -> ModelConfig:
    return ModelConfig(VOCAB, 4, 4, 1, 2, 1, 2, context, eos_token_ids=eos_token_ids)


def logits_after(token: int, position: int) -> list[float]:
    """What follows a token at a position: 23 different logits, the best two 1 apart, and not always the same."""
    best, second = (5 * token + 3 * position + 2) % VOCAB, (7 * token + position + 4) % VOCAB
    row = [-1.0 - ((index * 9 + token) % VOCAB) / 50 for index in range(VOCAB)]
    row[second], row[best] = 4.0, 5.0
    return row


class Scripted(Llama):
    """Answers by `logits_after`, and writes down each pass: its ids, and how many tokens the cache held before."""

    passes: list[str]

    def forward(self, ids: Tensor, cache: Any) -> Tensor:
        self.passes.append(f"{ids[0].tolist()} behind {cache.length}")
        hidden = torch.zeros(1, ids.shape[1], 4, dtype=torch.float32)
        hidden[0, -1, 0], hidden[0, -1, 1] = ids[0, -1], cache.length + ids.shape[1] - 1
        return hidden  # [1, T, 4]

    def logits(self, hidden: Tensor) -> Tensor:
        rows = [logits_after(int(token), int(position)) for token, position, *_ in hidden.reshape(-1, 4).tolist()]
        return torch.tensor(rows, dtype=torch.float32).view(*hidden.shape[:-1], VOCAB)  # [..., V]


@cache
def _built() -> Scripted:
    """Building a module takes longer than all that is asked of it here: it is built once, and copied."""
    return Scripted(config_with(context=20))


def scripted(config: ModelConfig) -> Scripted:
    """A model that has not been asked anything yet."""
    model = copy.copy(_built())
    model.config, model.passes = config, []
    return model


# --- the oracle: plain lists, by the definition ----------------------------------------------------------------------


def wanted_steps(
    prompt: Sequence[int], params: SamplingParams, eos: Sequence[int], room: int, known: bool
) -> list[tuple]:
    """(token, logprob, reason, the likeliest tokens) of each step."""
    sequence, generated, steps = list(prompt), [], []
    uniforms = random.Random(params.seed)
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos))
    while not steps or steps[-1][2] is None:
        raw = logits_after(sequence[-1], len(sequence) - 1)
        row = list(raw)
        for token in set(generated) | (set(prompt) if known else set()):
            row[token] = (
                row[token] / params.repetition_penalty if row[token] > 0 else (row[token] * params.repetition_penalty)
            )
        for token in set(generated):
            row[token] -= params.presence_penalty + params.frequency_penalty * generated.count(token)
        token = _drawn(row, params.temperature, uniforms.random()) if params.temperature else row.index(max(row))
        sequence.append(token)
        generated.append(token)
        full = len(generated) == params.max_tokens or len(sequence) == room
        total = sum(math.exp(logit) for logit in raw)
        likeliest = sorted(range(VOCAB), key=lambda index, raw=raw: -raw[index])
        steps.append(
            (
                token,
                raw[token] - math.log(total),
                "stop" if token in ends else "length" if full else None,
                None if params.logprobs is None else likeliest[: params.logprobs],
            )
        )
    return steps


def _drawn(row: Sequence[float], temperature: float, uniform: float) -> int:
    """The first token at which the running sum of the probabilities exceeds the random number."""
    weights = [math.exp(logit / temperature) for logit in row]
    return next(index for index, total in enumerate(accumulate(weights)) if total > uniform * sum(weights))
