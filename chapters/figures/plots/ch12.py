"""Plots of chapter 12. The first one is drawn from the decisions of the engine's own schedulers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from themed_plot import ACCENTS, FILLS, INK, MUTED, PAPER, plot_of, themed_svg

from minillm.engine.request import Request
from minillm.engine.scheduler import Scheduler
from minillm.engine.static_scheduler import StaticScheduler
from minillm.machine.batching import largest_batch
from minillm.machine.roofline import Machine, decode_limit, decode_work, shortest_seconds, step_work
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME
from minillm.sampling_params import SamplingParams

PLACES, BUDGET = 4, 16
REQUESTS = {  # tokens of the prompt, tokens of the answer
    "A": (6, 11),
    "B": (5, 3),
    "C": (8, 5),
    "D": (4, 2),
    "E": (40, 5),
    "F": (6, 9),
    "G": (5, 3),
    "H": (7, 6),
}


@dataclass
class _Stay:
    """A request's time in a place: its first step, and what each step from there on computes: "prompt" or "token"."""

    name: str
    place: int
    first: int
    steps: list[str] = field(default_factory=list)


def _played(policy: type[Scheduler]) -> list[_Stay]:
    """All requests through a scheduler, without a model. Who is admitted takes the lowest place that is free."""
    scheduler = policy(64, 4, max_batch_size=PLACES, token_budget=BUDGET, prefix_caching=False)
    for name, (prompt, answer) in REQUESTS.items():
        scheduler.add(Request(name, tuple(range(prompt)), SamplingParams(max_tokens=answer), prompt + answer))
    stays: dict[str, _Stay] = {}
    step = 0
    while scheduler.has_work:
        plan = scheduler.schedule()
        for request in plan.admitted:
            taken = {stays[other.request_id].place for other in scheduler.running if other.request_id in stays}
            place = min(set(range(PLACES)) - taken)
            stays[request.request_id] = _Stay(request.request_id, place, step)
        for part in plan.scheduled:
            stay = stays[part.request.request_id]
            stay.steps += ["waits"] * (step - stay.first - len(stay.steps))
            stay.steps.append("token" if part.num_tokens == 1 else "prompt")
        scheduler.computed(plan)
        for part in plan.scheduled:
            if part.samples:
                part.request.token_ids.append(0)
                if len(part.request.token_ids) == part.request.max_length:
                    scheduler.finish(part.request)
        step += 1
    return list(stays.values())


def _draw(axes: Axes, stays: Sequence[_Stay], title: str) -> int:
    """Places as rows, steps from left to right. Returns how many steps there are."""
    steps = max(stay.first + len(stay.steps) for stay in stays)
    axes.grid(visible=False)
    for place in range(PLACES):
        axes.barh(place, steps, left=0, height=0.8, color=PAPER, edgecolor=MUTED, linewidth=1, linestyle=":")
    for stay in stays:
        for number, kind in enumerate(stay.steps):
            if kind == "waits":
                continue
            colour = ACCENTS[1] if kind == "prompt" else FILLS[0]
            axes.barh(stay.place, 1, left=stay.first + number, height=0.8, color=colour, edgecolor=PAPER, linewidth=1)
        decoding = [number for number, kind in enumerate(stay.steps) if kind == "token"]
        middle = stay.first + (decoding[0] + decoding[-1] + 1) / 2  # letters are read on the light colour alone
        axes.text(middle, stay.place, stay.name, ha="center", va="center", color=INK, fontsize=14)
    axes.set(xlim=(0, 24), ylim=(PLACES - 0.45, -0.55), yticks=range(PLACES), xticks=range(0, 25, 4))
    axes.set_yticklabels([f"place {place + 1}" for place in range(PLACES)])
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    axes.set_title(title, fontsize=14)
    return steps


def _used(stays: Sequence[_Stay], steps: int) -> float:
    return sum(len(stay.steps) for stay in stays) / (steps * PLACES)


def static_and_continuous() -> str:
    """The same eight requests through both schedulers, step by step."""
    static, continuous = _played(StaticScheduler), _played(Scheduler)
    with plot_of(height=440) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        ends = [_draw(axes, stays, "") for axes, stays in ((above, static), (below, continuous))]
        shares = [_used(static, ends[0]), _used(continuous, ends[1])]
        above.set_title(f"static: {ends[0]} steps, {shares[0]:.0%} of the places used", fontsize=14)
        below.set_title(f"continuous: {ends[1]} steps, {shares[1]:.0%} of the places used", fontsize=14)
        below.set_xlabel("step")
        for axes, end in ((above, ends[0]), (below, ends[1])):
            axes.axvline(end, color=MUTED, linewidth=1.5)
        return themed_svg(
            figure,
            title="Eight requests in four places, batched statically and continuously",
            desc=f"Two timelines with a row for each of four places. Above, static batching: A, B, C and D begin"
            f" together, and three places stay empty until A has ended; then E, F, G and H. It takes {ends[0]} steps."
            f" Below, continuous batching: E takes D's place as soon as D has ended, and reads its long prompt in"
            f" chunks while the others decode; then F, G and H follow. It takes {ends[1]} steps. The places are used to"
            f" {shares[0]:.0%} and {shares[1]:.0%}.",
        )


def _h100() -> Machine:
    h100 = find("h100")
    return Machine(h100.bandwidth_bytes_per_s, h100.flops("bfloat16"))


def batch_on_an_h100(contexts: tuple[int, ...] = (512, 4096)) -> str:
    """Throughput and time per token of Llama-3-8B over the batch, as far as an H100's speeds and memory allow."""
    shape, machine, memory = BY_NAME["llama-3-8b"].shape, _h100(), 0.9 * find("h100").memory_bytes
    told = []
    with plot_of(height=460) as figure:
        above, below = figure.subplots(2, 1, sharex=True)
        for context, colour in zip(contexts, (ACCENTS[0], ACCENTS[1]), strict=True):
            most = largest_batch(shape, context, machine, memory, 1.0)
            batches = [2 ** (step / 4) for step in range(4 * 11) if 2 ** (step / 4) < most]
            sizes = sorted({round(batch) for batch in batches} | {most})
            works = [decode_work(shape, batch, context) for batch in sizes]
            rates = [decode_limit(work, batch, machine) for work, batch in zip(works, sizes, strict=True)]
            waits = [1e3 * shortest_seconds(work, machine) for work in works]
            above.loglog(sizes, rates, color=colour)
            below.loglog(sizes, waits, color=colour)
            for axes, ys in ((above, rates), (below, waits)):
                axes.plot(sizes[-1], ys[-1], "o", color=colour, markersize=8)
            above.annotate(
                f"{context:,} tokens each:\n{most} fit",
                (sizes[-1], rates[-1]),
                (-8, 10) if context == contexts[0] else (10, -24),
                textcoords="offset points",
                ha="right" if context == contexts[0] else "left",
                color=colour,
                fontsize=12,
            )
            told.append(
                f"With {context:,} tokens each, {most} sequences fit, at {rates[-1]:,.0f} tokens per second and"
                f" {waits[-1]:.1f} ms per token."
            )
        alone = 1 / shortest_seconds(decode_work(shape, 1, contexts[0]), machine)
        above.loglog([1, 400], [alone, 400 * alone], color=MUTED, linewidth=1, linestyle="--")
        above.annotate("batch x one request's rate", (2, 9000), color=MUTED, fontsize=12)
        above.set_title("tokens per second, all requests together", fontsize=14)
        below.set_title("milliseconds per token, for each request", fontsize=14)
        below.set_xlabel("requests in the batch")
        below.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1,024"])
        above.set(xlim=(1, 2000), ylim=(100, 100_000))
        above.set_yticks([100, 1000, 10_000, 100_000], ["100", "1,000", "10,000", "100,000"])
        below.set(ylim=(3, 60))
        below.set_yticks([5, 10, 20, 50], ["5", "10", "20", "50"])
        for axes in (above, below):
            axes.minorticks_off()
        return themed_svg(
            figure,
            title="Throughput and time per token of Llama-3-8B on an H100, over the batch",
            desc="Two plots over the batch, on logarithmic axes. Tokens per second of all requests rise in proportion"
            f" to the batch at first, and more slowly then; milliseconds per token stay at {1e3 / alone:.1f} at first,"
            f" and rise then. {' '.join(told)}",
        )


def step_beside_a_chunk(decoding: int = 32, context: int = 1024) -> str:
    """The least time of a step in which 32 requests decode and a chunk of a prompt is read, over the chunk's length."""
    shape, machine = BY_NAME["llama-3-8b"].shape, _h100()
    others = [(context, 1)] * decoding
    chunks = sorted({round(2 ** (step / 4)) for step in range(4 * 13 + 1)})
    waits = [1e3 * shortest_seconds(step_work(shape, [*others, (0, chunk)], decoding), machine) for chunk in chunks]
    free = max(chunk for chunk in range(1, 4096) if _is_free(chunk, others, machine))
    with plot_of() as figure:
        axes = figure.subplots()
        axes.loglog(chunks, waits, color=ACCENTS[0])
        axes.axvline(free, color=MUTED, linewidth=1, linestyle=":")
        axes.annotate(f"up to {free} tokens:\nno longer than without", (free, 25), (-8, 0), textcoords="offset points",
                      ha="right", color=MUTED, fontsize=12)  # fmt: skip
        axes.set(xlim=(1, 8192), ylim=(4, 200))
        axes.set_xticks([1, 16, 64, 256, 2048, 8192], ["1", "16", "64", "256", "2,048", "8,192"])
        axes.set_yticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
        axes.minorticks_off()
        axes.set_xlabel("prompt tokens in the step")
        axes.set_title(f"milliseconds of a step, with {decoding} that decode", fontsize=14)
        return themed_svg(
            figure,
            title="The least time of a step with 32 decoding requests and a chunk of a prompt, over the chunk's length",
            desc=f"A curve over 1 to 8,192 prompt tokens, on logarithmic axes. It is flat at {waits[0]:.1f} ms up to"
            f" {free} tokens, where reading memory is the limit, and rises then with the operations, to"
            f" {waits[-1]:.0f} ms at 8,192 tokens.",
        )


def _is_free(chunk: int, others: Sequence[tuple[int, int]], machine: Machine) -> bool:
    """Whether the step with the chunk is still limited by memory."""
    work = step_work(BY_NAME["llama-3-8b"].shape, [*others, (0, chunk)], len(others))
    return work.intensity < machine.ridge_point


PLOTS = {
    "static-and-continuous.svg": static_and_continuous,
    "batch-h100.svg": batch_on_an_h100,
    "chunk-step.svg": step_beside_a_chunk,
}
