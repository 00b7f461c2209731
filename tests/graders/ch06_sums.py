"""6.4 and 6.5: the keys and values that an answer reads, and the own times of a profile's spans."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from graders.common import CHANGED, UNTOUCHED, formula
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.machine.profile import Span

# --- 6.4: wanted figures are added up by hand, pass by pass ----------------------------------------------------------

DECODE_KV_BYTES = Grader(
    cases=[
        formula("prompt_tokens = 5, completion_tokens = 4, bytes_per_token = 100", [5, 4, 100], (6 + 7 + 8) * 100),
        formula("prompt_tokens = 5, completion_tokens = 3, bytes_per_token = 100", [5, 3, 100], (6 + 7) * 100),
        formula("prompt_tokens = 7, completion_tokens = 2, bytes_per_token = 480: one pass", [7, 2, 480], 8 * 480),
        formula("prompt_tokens = 9, completion_tokens = 1, bytes_per_token = 480: no pass", [9, 1, 480], 0),
        formula("prompt_tokens = 9, completion_tokens = 0, bytes_per_token = 480: stopped", [9, 0, 480], 0),
        formula(
            "prompt_tokens = 1000, completion_tokens = 500, bytes_per_token = 131072: Llama-3-8B",
            [1000, 500, 131_072],
            sum(range(1001, 1500)) * 131_072,
        ),
    ],
    mutants=[
        Mutant(
            lambda p, n, b: b * sum(p + i for i in range(1, n + 1)),
            "One pass too many: the last token is never computed. An answer of n tokens has n - 1 decode passes.",
        ),
        Mutant(
            lambda p, n, b: b * sum(p + i for i in range(n - 1)),
            "You leave out the token that each pass computes. It attends to itself too: its own key and value are"
            " written and then read with the others.",
        ),
        Mutant(
            lambda p, n, b: b * sum(p + i for i in range(n)),
            "You count a pass for the first token. It came out of prefill, whose keys and values are not meant here;"
            " the first decode pass has prompt_tokens + 1 in view.",
        ),
        Mutant(
            lambda p, n, b: b * max(0, n - 1) * p,
            "You let each pass read the prompt alone. It also reads all tokens generated so far, one more each time.",
        ),
        Mutant(
            lambda p, n, b: b * max(0, n - 1) * (p + n),
            "You let each pass read the whole text. That is more than even the last one has in view, which is before"
            " the last token; and the first ones have fewer: it is a sum that grows by one.",
        ),
        Mutant(
            lambda p, n, b: b * max(0, n - 1) * (p + n - 1),
            "You let each pass read what the last one reads. The first ones have fewer tokens in view: it is a sum"
            " that grows by one.",
        ),
        Mutant(
            lambda p, n, b: b * max(0, n - 1) * ((p + 1 + p + n - 1) // 2),
            "You round the average before you multiply, and lose half a token in each pass where it is not whole:"
            " multiply first, then divide by 2.",
        ),
        Mutant(
            lambda p, n, b: 2 * b * sum(p + i for i in range(1, n)),
            "Twice too much: bytes_per_token counts keys and values both.",
        ),
        Mutant(
            lambda p, n, b: b * sum(p + i for i in range(2, n + 1)),
            "Each view is one token too long. The pass for the second token computes the first one: it has"
            " prompt_tokens + 1 in view, and the second is not known yet.",
        ),
        Mutant(
            lambda p, n, b: b * sum(range(1, p + n)),
            "You count the prompt's own tokens too, one by one. They were computed in prefill; the first decode pass"
            " has prompt_tokens + 1 in view.",
        ),
        Mutant(
            lambda p, n, b: b * sum(p + i for i in range(1, n)) / 1e9,
            "Those are GB. Return bytes, as a whole number.",
        ),
        Mutant(
            lambda p, n, b: b * sum(range(1, n)),
            "You forget the prompt. Each pass reads its keys and values too, and with a long prompt they are most of"
            " what is read.",
        ),
        Mutant(
            lambda p, n, b: b * (p + max(0, n - 1)),
            "That is what the cache holds at the end. Here it is what the passes *read*, and each of them reads all"
            " that is held by then.",
        ),
        Mutant(
            lambda p, n, b: sum(p + i for i in range(1, n)),
            "Those are tokens. Multiply by bytes_per_token.",
        ),
        Mutant(
            lambda p, n, b: b * (max(0, n - 1) * p + max(0, n - 1) * n / 2),
            "The value is right where there is a pass, but it is a float. Bytes come in whole numbers: divide with //.",
        ),
        Mutant(
            lambda p, n, b: b * ((n - 1) * p + (n - 1) * n // 2),
            "Right while something is generated. A request that was stopped before its first token has no pass, not"
            " minus one of them.",
        ),
    ],
    alternatives=[
        lambda p, n, b: b * sum(p + i for i in range(1, n)),
        lambda p, n, b: sum(b * view for view in range(p + 1, p + n)),
        lambda p, n, b: int(b * max(0, n - 1) * (2 * p + n) // 2),
    ],
)

# --- 6.5: times are eighths of a second, which floats hold exactly ---------------------------------------------------


def _spans(*times: tuple[str, float, float]) -> list[Span]:
    return [Span(name, float(start), float(end)) for name, start, end in times]


def _tree(seed: int) -> list[Span]:
    """A random tree of spans, ticks apart: siblings that touch, and children as long as their parent, included."""
    draw, spans = random.Random(seed), []

    def grow(name: str, start: int, end: int, depth: int) -> None:
        spans.append(Span(name, start / 8, end / 8))
        cuts = sorted(draw.sample(range(start, end + 1), k=min(end - start, draw.randint(0, 4)))) if depth < 4 else []
        for number, (left, right) in enumerate(pairwise(cuts)):
            if draw.random() < 0.7:
                grow(f"{name}.{number}", left, right, depth + 1)

    grow("0", 3, 67, 0)
    return spans


def _innermost(spans: Sequence[Span]) -> list[float]:
    """The oracle: tick by tick, whose is it? The last of those that are running, for it began last."""
    own = [0.0] * len(spans)
    for tick in range(round(8 * max(span.end for span in spans)) if spans else 0):
        running = [i for i, span in enumerate(spans) if span.start <= tick / 8 < span.end]
        if running:
            own[running[-1]] += 1 / 8
    return own


def _numbers(result: Any) -> Any:
    """A list of numbers in words, to six digits (times here are eighths: the rest is rounding); anything else as is."""
    if isinstance(result, dict):
        return f"a dict: {_numbers(list(result.values()))}"
    if isinstance(result, list | tuple) and all(isinstance(each, int | float) for each in result):
        return ", ".join(f"{round(each, 6) + 0.0:g}" for each in result) or "none"
    return result


def _own_case(given: str, spans: list[Span]) -> Case:
    def observe(f: Function) -> Observation:
        mine = list(spans)
        return {
            "the own seconds": _numbers(f(mine)),
            "spans afterwards": UNTOUCHED if mine == spans else CHANGED,
        }

    return Case(given, observe, lambda: {"the own seconds": _numbers(_innermost(spans)), "spans afterwards": UNTOUCHED})


def _around(spans: Sequence[Span], index: int, *, inclusive: bool = False) -> list[int]:
    """Of the spans before this one, those that it lies inside; inclusive: also those that only touch it."""
    at = spans[index].start
    return [i for i in range(index) if spans[i].end > at or (inclusive and spans[i].end == at)]


def _taking_from(choose: Any) -> Function:
    """Each span's duration is taken from the spans that `choose` picks from those around it."""

    def self_seconds(spans: Sequence[Span]) -> list[float]:
        own = [span.end - span.start for span in spans]
        for index, span in enumerate(spans):
            for i in choose(_around(spans, index)):
                own[i] -= span.end - span.start
        return own

    return self_seconds


def _never_popped(spans: Sequence[Span]) -> list[float]:
    own = [span.end - span.start for span in spans]
    for index in range(1, len(spans)):
        own[index - 1] -= own[index]
    return own


def _touching(spans: Sequence[Span]) -> list[float]:
    own = [span.end - span.start for span in spans]
    for index, span in enumerate(spans):
        for i in _around(spans, index, inclusive=True)[-1:]:
            own[i] -= span.end - span.start
    return own


def _popped_once(spans: Sequence[Span]) -> list[float]:
    own, stack = [span.end - span.start for span in spans], []
    for index, span in enumerate(spans):
        if stack and spans[stack[-1]].end <= span.start:
            stack.pop()
        if stack:
            own[stack[-1]] -= span.end - span.start
        stack.append(index)
    return own


def _by_name(spans: Sequence[Span]) -> list[float]:
    own = {span.name: 0.0 for span in spans}
    for span, seconds in zip(spans, _taking_from(lambda around: around[-1:])(spans), strict=True):
        own[span.name] += seconds
    return list(own.values())


def _sums_by_name(spans: Sequence[Span]) -> dict[str, float]:
    sums = dict.fromkeys((span.name for span in spans), 0.0)
    for span, seconds in zip(spans, _children_of(spans), strict=True):
        sums[span.name] += seconds
    return sums


def _by_value(spans: Sequence[Span]) -> list[float]:
    own = {span: span.end - span.start for span in spans}
    for index, span in enumerate(spans):
        for i in _around(spans, index)[-1:]:
            own[spans[i]] -= span.end - span.start
    return [own[span] for span in spans]


def _as_they_end(spans: Sequence[Span]) -> list[float]:
    own, done, running = _children_of(spans), [], []
    for index, span in enumerate(spans):
        while running and spans[running[-1]].end <= span.start:
            done.append(own[running.pop()])
        running.append(index)
    return done + [own[index] for index in reversed(running)]


def _from_the_one_before(spans: Sequence[Span]) -> list[float]:
    own = [span.end - span.start for span in spans]
    for index, (before, span) in enumerate(pairwise(spans)):
        if span.end <= before.end:
            own[index] -= span.end - span.start
    return own


def _leaves(spans: Sequence[Span]) -> list[float]:
    parents = {i for index in range(len(spans)) for i in _around(spans, index)}
    return [0.0 if index in parents else span.end - span.start for index, span in enumerate(spans)]


def _popped_by_end(spans: Sequence[Span]) -> list[float]:
    own, running = [span.end - span.start for span in spans], []
    for index, span in enumerate(spans):
        while running and spans[running[-1]].end <= span.end:
            running.pop()
        if running:
            own[running[-1]] -= span.end - span.start
        running.append(index)
    return own


def _timeline(spans: Sequence[Span]) -> list[float]:
    """Another right way: walk over all begins and ends, and book each stretch to what is innermost then."""
    times = sorted({time for span in spans for time in (span.start, span.end)})
    own = [0.0] * len(spans)
    for start, end in pairwise(times):
        inside = [i for i, span in enumerate(spans) if span.start <= start and end <= span.end]
        if inside:
            own[inside[-1]] += end - start
    return own


def _children_of(spans: Sequence[Span]) -> list[float]:
    children: list[list[int]] = [[] for _ in spans]
    for index in range(len(spans)):
        for parent in _around(spans, index)[-1:]:
            children[parent].append(index)
    return [
        span.end - span.start - sum(spans[child].end - spans[child].start for child in children[index])
        for index, span in enumerate(spans)
    ]


_LAYER = _spans(("layer", 0, 6), ("norm", 0, 2), ("mlp", 2, 5), ("mm", 3, 4))
_TWINS = _spans(("pass", 0, 4), ("mm", 1, 3), ("mm", 1, 3))

SELF_SECONDS = Grader(
    cases=[
        _own_case("layer 0 to 6, in it norm 0 to 2 and mlp 2 to 5, in that mm 3 to 4", _LAYER),
        _own_case("two passes, 1 to 2 and 4 to 4.5, nothing inside", _spans(("pass", 1, 2), ("pass", 4, 4.5))),
        _own_case(
            "a 0 to 8, b 1 to 7, c 2 to 6, d 3 to 5, one inside the other; then e 7 to 8",
            _spans(("a", 0, 8), ("b", 1, 7), ("c", 2, 6), ("d", 3, 5), ("e", 7, 8)),
        ),
        _own_case("a 0 to 2, and b 0 to 2 inside it, which fills it", _spans(("a", 0, 2), ("b", 0, 2))),
        _own_case("pass 0 to 4, in it mm 1 to 3, in that another mm 1 to 3", _TWINS),
        _own_case("no span at all", []),
        _own_case(f"{len(_tree(4))} spans inside one of 8 seconds", _tree(4)),
        _own_case(f"{len(_tree(9))} spans inside one of 8 seconds", _tree(9)),
    ],
    mutants=[
        Mutant(
            _taking_from(lambda around: []),
            "Those are durations. Of a span's seconds, those that belong to the spans inside it are not its own.",
        ),
        Mutant(
            _taking_from(lambda around: around),
            "You take a span's duration from every span around it. Only the one that it stands in directly loses it:"
            " those further out lose that one whole, and would pay twice.",
        ),
        Mutant(
            _taking_from(lambda around: around[:1]),
            "You take everything from the outermost span. A span's seconds belong to the one that it stands in"
            " directly, which is the last that began and has not ended.",
        ),
        Mutant(
            _never_popped,
            "You take each span from the one before it in the list. That one may have ended already: take spans off"
            " the stack when their end is not after the new one's start.",
        ),
        Mutant(
            _touching,
            "A span that ends where the next begins is not around it: take it off the stack where end <= start, not"
            " only where end < start.",
        ),
        Mutant(
            _popped_once,
            "You take one span off the stack at most. Several may have ended by the time the next one begins: it is a"
            " `while`, not an `if`.",
        ),
        Mutant(
            _by_name,
            "You add up spans of the same name. One number per span is wanted, in the spans' order; whoever wants sums"
            " by name makes them of these.",
        ),
        Mutant(
            _sums_by_name,
            "You return a dict by name. Names come again (a model has many layers): return a list, with one number per"
            " span, in the spans' order.",
        ),
        Mutant(
            lambda spans: [_sums_by_name(spans)[span.name] for span in spans],
            "You give each span what all spans of its name have together. Each has its own seconds: keep them by its"
            " place in the list.",
        ),
        Mutant(
            _by_value,
            "You find a span by its value, as a dict's key or with `index`. Two spans may be alike in everything: keep"
            " their places in the list (enumerate) on the stack.",
        ),
        Mutant(
            _as_they_end,
            "The numbers are right, in the order in which the spans end. They are wanted in the order of `spans`: make"
            " the list first, and write at a span's own place.",
        ),
        Mutant(
            _from_the_one_before,
            "You ask only whether the span before it in the list is around it. Where that one has ended, another may"
            " still be running: keep a stack of all that are.",
        ),
        Mutant(
            _leaves,
            "You count only spans with nothing inside. A span around others has seconds of its own too, between them:"
            " there a profile shows what lies between operators.",
        ),
        Mutant(
            _popped_by_end,
            "You take a span off the stack when it ends no later than the new one. Where both end together the new one"
            " is inside it: compare its end with the new one's *start*.",
        ),
        Mutant(
            lambda spans: [max(0.0, own) for own in _taking_from(lambda around: around)(spans)],
            "You take a span's duration from every span around it, and set what becomes negative to zero. Only the"
            " span around it directly loses it; then nothing becomes negative, and the sum is right.",
        ),
    ],
    alternatives=[_timeline, _children_of, lambda spans: tuple(_taking_from(lambda around: around[-1:])(spans))],
)
