"""Where the time of a decode pass goes: a profile, by the model's parts and by what was running in them.

PyTorch's profiler notes when each of its operators began and ended. Around them, hooks note the same for the parts of
the model. All of it together is spans on one clock, one inside the other, and a span's own time is what is left when
the spans inside it are taken out. Own times add up to the whole: nothing is counted twice, and nothing is lost.

A part's own time is what lies *between* the operators: Python, and PyTorch's way from a call to its kernel. On a GPU
it is also the time in which the processor waits for it, and an operator's time is that of launching it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.hooks import RemovableHandle

from minillm.device import clock
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.linear import Linear
from minillm.model import Attention, DecoderLayer, Llama, RMSNorm, SwiGLU
from minillm.prefill import prefill
from minillm.sampler import SamplerState, SamplingParams, sample_one

PRODUCTS, OTHERS, BETWEEN = "matrix products", "other operators", "between operators"
KINDS: tuple[str, ...] = (PRODUCTS, OTHERS, BETWEEN)

_PASS, _HEAD, _SAMPLER, _ATTENTION, _REST = "decode pass", "head", "sampler", "attention", "the rest"
_PART_OF: dict[type, str] = {
    RMSNorm: "norms",
    Linear: "projections",
    Attention: "rotary positions",
    SwiGLU: "activation",
    DecoderLayer: "residual",
}
_OPERATOR = "aten::"
_PRODUCT_OPERATORS = frozenset(
    f"{_OPERATOR}{name}" for name in ("linear", "matmul", "mm", "bmm", "mv", "addmm", "addmv")
)


@dataclass(frozen=True)
class Span:
    """Something that ran from `start` to `end`, in seconds on one clock."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class PassProfile:
    """The mean of some decode passes. `seconds` by (part, kind); they add up to `total_s`.

    `calls`: how many operators a pass calls; those that operators call in turn are not counted.
    """

    seconds: Mapping[tuple[str, str], float]
    total_s: float
    calls: float

    @property
    def parts(self) -> list[str]:
        """The model's parts, the slowest first."""
        return sorted({part for part, _ in self.seconds}, key=lambda part: -sum(self.by_kind(part).values()))

    def by_kind(self, part: str | None = None) -> dict[str, float]:
        """Seconds by kind, of one part or of all."""
        seconds = dict.fromkeys(KINDS, 0.0)
        for (where, kind), spent in self.seconds.items():
            if part in (where, None):
                seconds[kind] += spent
        return seconds


def enclosing(spans: Sequence[Span]) -> Iterator[tuple[int, ...]]:
    """For each span the indices of those around it, from the outermost to the one that it stands in directly.

    `spans` are in the order in which they began, an outer one before those inside it; of two, either one lies inside
    the other or they do not overlap.
    """
    around: list[int] = []
    for index, span in enumerate(spans):
        while around and spans[around[-1]].end <= span.start:
            around.pop()
        yield tuple(around)
        around.append(index)


def self_seconds(spans: Sequence[Span]) -> list[float]:
    """Of each span its own seconds: those in which it was running, and no span inside it was.

    `spans` in the order of `enclosing`. Where all of them lie inside one, their own seconds add up to its duration.
    """
    own = [span.end - span.start for span in spans]
    for span, around in zip(spans, enclosing(spans), strict=True):
        if around:
            own[around[-1]] -= span.end - span.start  # those further out have lost it with the span around it
    return own


def profile_pass(model: Llama, cache: KVCache, passes: int = 8) -> PassProfile:
    """Profile turns of the decode loop: one token computed behind what `cache` holds, and the next one chosen.

    The cache is left as it was. A turn runs before, for what is set up once. Raises InputError for passes below 1,
    and for a cache that is empty, has no room for them, or is of several sequences.
    """
    if passes < 1:
        raise InputError(f"passes must be at least 1, not {passes}")
    if cache.batch_size != 1:
        raise InputError(f"a pass is profiled for one sequence, and the cache has {cache.batch_size}")
    if not 0 < cache.length < cache.max_seq_len - passes:
        raise InputError(
            f"a cache that holds {cache.length} of {cache.max_seq_len} tokens is not one to profile {passes} decode"
            " passes on: it needs a past, and room for what is added"
        )
    before = cache.length
    try:
        _turn(model, cache)
        with _marked(model, cache), profile(activities=[ProfilerActivity.CPU]) as recorded:
            for _ in range(passes):
                with record_function(_PASS):
                    _turn(model, cache)
    finally:
        cache.truncate(before)
    return _summary(_spans(recorded), passes)


def _turn(model: Llama, cache: KVCache) -> None:
    """One turn of the loop. Which token it computes makes no difference to its time."""
    params = SamplingParams()
    logits = prefill(model, [0], cache)  # [1, V]
    with record_function(_SAMPLER):
        sample_one(logits, params, SamplerState(params))
    clock(model.device)  # a GPU may still be at work


@contextmanager
def _marked(model: Llama, cache: KVCache) -> Iterator[None]:
    """Within, the model's parts and the cache's attention show in a profile."""
    hooks: list[RemovableHandle] = []
    for module in model.modules():
        if part := _HEAD if module is model.lm_head else _PART_OF.get(type(module)):
            hooks += _hooks(module, part)
    attend = cache.attend

    def marked_attend(*args: Any) -> Any:
        with record_function(_ATTENTION):
            return attend(*args)

    vars(cache)["attend"] = marked_attend  # before the class's own
    try:
        yield
    finally:
        del vars(cache)["attend"]
        for hook in hooks:
            hook.remove()


def _hooks(module: nn.Module, part: str) -> list[RemovableHandle]:
    """Around each call of the module, a mark in the profile."""
    running: list[record_function] = []

    def begin(*_: Any) -> None:
        running.append(record_function(part))
        running[-1].__enter__()

    def end(*_: Any) -> None:
        running.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]


def _spans(recorded: profile) -> list[Span]:
    """What the profiler saw of our parts and of PyTorch's operators, in the order of `enclosing`."""
    names = {_PASS, _HEAD, _SAMPLER, _ATTENTION, *_PART_OF.values()}
    spans = [
        Span(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in recorded.events() or ()
        if event.name in names or event.name.startswith(_OPERATOR)
    ]
    return sorted(spans, key=lambda span: (span.start, -span.end))


def _summary(spans: Sequence[Span], passes: int) -> PassProfile:
    """Own seconds by part and kind, for one pass. An operator inside another one is of the outer one's kind."""
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    calls = 0
    for index, (own_s, around) in enumerate(zip(self_seconds(spans), enclosing(spans), strict=True)):
        names = [spans[i].name for i in (*around, index)]
        if names[0] != _PASS:
            continue
        parts = [name for name in names if not name.startswith(_OPERATOR)]
        operators = names[len(parts) :]
        kind = BETWEEN if not operators else PRODUCTS if operators[0] in _PRODUCT_OPERATORS else OTHERS
        seconds[parts[-1] if parts[-1] != _PASS else _REST, kind] += own_s / passes
        calls += len(operators) == 1
    total_s = sum(span.end - span.start for span in spans if span.name == _PASS) / passes
    return PassProfile(dict(seconds), total_s, calls / passes)
