"""The oracle of chapter 7's graders: the steps on plain lists, number by number in Python's float64."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

NEVER = -math.inf


def row(values: Iterable[float], dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits as a tensor, whatever torch's default dtype is."""
    return torch.tensor(list(values), dtype=dtype)


def logs(*probs: float) -> list[float]:
    """Logits whose softmax is `probs`."""
    return [math.log(p) if p else NEVER for p in probs]


def softmax(logits: Sequence[float]) -> list[float]:
    most = max(logits)
    weights = [math.exp(logit - most) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


def biased(logits: Sequence[float], amounts: Mapping[int, float]) -> list[float]:
    return [logit + amounts.get(i, 0.0) for i, logit in enumerate(logits)]


def repetition(logits: Sequence[float], token_ids: Iterable[int], penalty: float) -> list[float]:
    seen = set(token_ids)
    return [
        (logit * penalty if logit < 0 else logit / penalty) if i in seen else logit for i, logit in enumerate(logits)
    ]


def temperature(logits: Sequence[float], value: float) -> list[float]:
    most = max(logits)
    return [(logit - most) / value for logit in logits]


def min_p(logits: Sequence[float], share: float) -> list[float]:
    probs = softmax(logits)
    return [logit if prob >= share * max(probs) else NEVER for logit, prob in zip(logits, probs, strict=True)]


def top_k(logits: Sequence[float], k: int) -> list[float]:
    least = sorted(logits, reverse=True)[k - 1] if 0 < k < len(logits) else NEVER
    return [logit if logit >= least else NEVER for logit in logits]


def top_p(logits: Sequence[float], share: float) -> list[float]:
    if share == 1.0:
        return list(logits)
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    probs, total, least = softmax(logits), 0.0, NEVER
    for i in order:
        total, least = total + probs[i], logits[i]
        if total >= share:
            break
    return [logit if logit >= least else NEVER for logit in logits]
