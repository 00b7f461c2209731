"""Plots of chapter 13: states of the engine's own scheduler, drawn. No model runs for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from minillm.engine.request import Request
from minillm.engine.scheduler import Plan, Scheduler
from minillm.engine.static_scheduler import StaticScheduler
from minillm.sampling_params import SamplingParams

# ---- block tables

WORDS = ["Be", "brief", "and", "polite", "Who", "keeps", "the", "light", "in", "winter"]
ANSWERS = {"A": ["?", "He", "does"], "B": ["?", "A", "man"]}
BLOCK = 4


def _step(scheduler: Scheduler, answers: dict[str, list[int]]) -> Plan:
    """One step as if a model had run: who samples gets the next of its `answers`."""
    plan = scheduler.schedule()
    scheduler.computed(plan)
    for part in plan.scheduled:
        if part.samples:
            request = part.request
            request.token_ids.append(answers.get(request.request_id, [0] * 9)[request.num_generated])
    return plan


def _add(scheduler: Scheduler, name: str, ids: Sequence[int]) -> Request:
    request = Request(name, tuple(ids), SamplingParams(max_tokens=9), len(ids) + 9)
    scheduler.add(request)
    return request


def _two_that_share() -> tuple[Scheduler, Request, Request, tuple[int, int]]:
    """A with ten tokens, then B whose prompt is the first eight of them; and which block was copied into which."""
    vocabulary = list(dict.fromkeys([*WORDS, *ANSWERS["A"], *ANSWERS["B"]]))
    prompt = [vocabulary.index(word) for word in WORDS]
    answers = {name: [vocabulary.index(word) for word in words] for name, words in ANSWERS.items()}
    scheduler = Scheduler(10, BLOCK)
    for name, length in (("before", 13), ("beside", 9)):  # others come first, so that A's blocks are not 0, 1, 2
        other = _add(scheduler, name, range(100 * length, 101 * length))
        _step(scheduler, answers)
        if name == "before":
            scheduler.finish(other)
    a = _add(scheduler, "A", prompt)
    _step(scheduler, answers)
    scheduler.finish(other)
    b = _add(scheduler, "B", prompt[: 2 * BLOCK])
    (copied,) = _step(scheduler, answers).copies
    _step(scheduler, answers)
    return scheduler, a, b, copied


def block_tables() -> str:
    """Two requests, their tables, and the blocks that the tables speak of."""
    scheduler, a, b, (source, target) = _two_that_share()
    vocabulary = list(dict.fromkeys([*WORDS, *ANSWERS["A"], *ANSWERS["B"]]))
    shown = range(5, 10)
    assert {*a.block_table, *b.block_table} <= set(shown)
    x = {block: 8 + 102 * i for i, block in enumerate(shown)}  # left edges of the blocks
    hues = {block: 1 if block in a.block_table else 2 for block in shown}
    hues |= {block: 3 for block in shown if scheduler.pool.users(block) == 2}
    contents = {
        block: [vocabulary[token] for token in request.token_ids[: request.num_computed][i * BLOCK : (i + 1) * BLOCK]]
        for request in (a, b)
        for i, block in enumerate(request.block_table)
    }
    lines = [
        f'<text class="fig-title" x="8" y="18">A: {a.num_computed} tokens, in blocks {_listing(a.block_table)}</text>',
        *_table(a, 30, hues),
        *(
            f'<path d="M{_table_x(i) + 42} 64 C{_table_x(i) + 42} 92 {x[block] + 48} 88 {x[block] + 48} 118"'
            f' stroke="var(--fig-accent-{hues[block]})" stroke-width="2" fill="none"/>'
            for i, block in enumerate(a.block_table)
        ),
        *(line for block in shown for line in _block(block, x[block], contents[block], hues[block], scheduler)),
        f'<path d="M{x[source] + 30} 209 v14 q0 8 -8 8 H{x[target] + 56} q-8 0 -8 -8 v-8" stroke="var(--fig-ink)"'
        ' stroke-dasharray="5 4" fill="none"/>',
        f'<path d="M{x[target] + 43} 218 l5 -8 l5 8" stroke="var(--fig-ink)" fill="none"/>',
        f'<text class="fig-note" x="{x[source] + 40}" y="234">copied to {target}, then written into by B</text>',
        *(
            f'<path d="M{x[block] + 70} 209 C{x[block] + 70} 262 {_table_x(i) + 42} 252 {_table_x(i) + 42} 288"'
            f' stroke="var(--fig-accent-{hues[block]})" stroke-width="2" fill="none"/>'
            for i, block in enumerate(b.block_table)
        ),
        *_table(b, 288, hues),
        f'<text class="fig-title" x="8" y="348">B: {b.num_computed} tokens, in blocks {_listing(b.block_table)}</text>',
    ]
    return _svg(
        520,
        360,
        "Block tables of two requests that share a prefix",
        f"Five blocks of four tokens. Request A has the blocks {_listing(a.block_table)}. Request B, whose prompt is"
        f" the first eight tokens of A's, has {_listing(b.block_table)}. Block {a.block_table[0]} is in both tables."
        f" Block {source} has been copied to {target}, because B computes the last token of its prompt again and"
        f" writes it there. Each goes on in a block of its own, {a.block_table[2]} and {b.block_table[2]}.",
        lines,
    )


def _listing(blocks: Sequence[int]) -> str:
    *others, last = map(str, blocks)
    return f"{', '.join(others)} and {last}"


def _table_x(i: int) -> int:
    return 110 + 104 * i


def _table(request: Request, y: int, hues: dict[int, int]) -> Iterator[str]:
    """A request's block table: which tokens, and in which block they are."""
    for i, block in enumerate(request.block_table):
        left, hue = _table_x(i), hues[block]
        last = min((i + 1) * BLOCK, request.num_computed) - 1
        tokens = f"token {last}" if last == i * BLOCK else f"tokens {i * BLOCK}-{last}"
        yield (
            f'<rect x="{left}" y="{y}" width="84" height="34" rx="3" fill="var(--fig-fill-{hue})"'
            f' stroke="var(--fig-accent-{hue})"/>'
        )
        yield f'<text class="fig-note" x="{left + 42}" y="{y + 14}" text-anchor="middle">{tokens}</text>'
        yield (
            f'<text class="fig-strong" x="{left + 42}" y="{y + 29}" text-anchor="middle" font-size="13"'
            f' fill="var(--fig-ink)">{block}</text>'
        )


def _block(block: int, left: int, words: Sequence[str], hue: int, scheduler: Scheduler) -> Iterator[str]:
    """A block: its number, its four slots, how many use it."""
    users = scheduler.pool.users(block)
    yield (
        f'<text class="fig-note" x="{left + 2}" y="134">block {block}, {users} user{"s" if users != 1 else ""}</text>'
    )
    for place in range(BLOCK):
        x, y = left + 48 * (place % 2), 140 + 34 * (place // 2)
        word = escape(words[place]) if place < len(words) else ""
        yield (
            f'<rect x="{x}" y="{y}" width="48" height="34" fill="var(--fig-fill-{hue if word else 0})"'
            f' stroke="var(--fig-accent-{hue})"/>'
        )
        if word:
            yield (
                f'<text x="{x + 24}" y="{y + 22}" text-anchor="middle" font-size="13" fill="var(--fig-ink)">'
                f"{word}</text>"
            )


# ---- fragmentation

PROMPTS = [5 + (373 * i + 211) % 796 for i in range(64)]  # 5 to 800 tokens, mixed
USED = [1 + (91 * i + 37) % 200 for i in range(64)]  # 1 to 200 tokens of answer; nobody knows that before
ALLOWED = 256
BLOCKS, SLOTS = 256, 16
SNAPSHOT = 60  # which step is drawn


@dataclass(frozen=True)
class _Snapshot:
    """requests: the blocks of each request that runs at one step, with how many of their slots are held. kept: blocks
    of requests that have ended, and whose batch has not. waste: of all steps, the share of reserved slots that hold
    nothing.
    """

    requests: list[list[tuple[int, int]]]
    kept: list[int]
    waste: float


def _snapshot(scheduler: Scheduler) -> _Snapshot:
    """The 64 requests, served."""
    ends = {}
    for number, (prompt, used) in enumerate(zip(PROMPTS, USED, strict=True)):
        ids = range(number, number + prompt)
        request = Request(str(number), tuple(ids), SamplingParams(max_tokens=ALLOWED), prompt + ALLOWED)
        ends[request] = used
        scheduler.add(request)
    drawn: list[list[tuple[int, int]]] = []
    kept: list[int] = []
    reserved = held = steps = 0
    while scheduler.has_work:
        plan = _step(scheduler, {str(number): [0] * ALLOWED for number in range(64)})
        steps += 1
        reserved += scheduler.pool.num_used * SLOTS
        held += sum(request.num_computed for request in scheduler.running)
        if steps == SNAPSHOT:
            drawn = [_filled(request) for request in scheduler.running]
            own = {block for request in drawn for block, _ in request}
            kept = [block for block in range(BLOCKS) if scheduler.pool.users(block) and block not in own]
        for part in plan.scheduled:
            if part.request.num_generated == ends[part.request]:
                scheduler.finish(part.request)
    return _Snapshot(drawn, kept, 1 - held / reserved)


def _filled(request: Request) -> list[tuple[int, int]]:
    """(block, slots that hold a token) for each block of a request."""
    return [
        (block, max(0, min(SLOTS, request.num_computed - i * SLOTS))) for i, block in enumerate(request.block_table)
    ]


def memory_before_and_after() -> str:
    """The same memory under both policies, block by block, at one step of the same 64 requests."""
    panels = (
        ("reserved for the longest", _snapshot(StaticScheduler(BLOCKS, SLOTS))),
        ("in blocks of 16", _snapshot(Scheduler(BLOCKS, SLOTS, prefix_caching=False))),
    )
    lines, told = [], []
    for left, (name, seen) in zip((6, 270), panels, strict=True):
        lines += [
            f'<text class="fig-title" x="{left}" y="20">{name}</text>',
            f'<text class="fig-note" x="{left}" y="40">{len(seen.requests)} requests run</text>',
            *_grid(left, 50, seen),
            f'<text class="fig-note" x="{left}" y="312">reserved and empty: {seen.waste:.1%} of</text>',
            f'<text class="fig-note" x="{left}" y="330">what is reserved, over the run</text>',
        ]
        told.append(f"{name}: {len(seen.requests)} requests run, {seen.waste:.1%} of what is reserved holds nothing")
    return _svg(
        520,
        342,
        "The same memory, reserved and in blocks",
        f"Two squares of {BLOCKS} blocks of {SLOTS} tokens each, in the middle of serving the same 64 requests. Full"
        " colour is a slot that holds a token, a pale one is reserved and empty, a grey one is kept for a request that"
        " has ended, and a bare one is free. In the first square each request has one long piece, partly pale, and what"
        " is bare is too little for another. In the second the blocks of the requests lie mixed, and nearly all of them"
        f" are full. {'; '.join(told)}.",
        lines,
    )


def _grid(left: int, top: int, seen: _Snapshot, side: int = 15) -> Iterator[str]:
    """16 x 16 blocks; each request in one of four hues."""
    places = {block: (left + side * (block % 16), top + side * (block // 16)) for block in range(BLOCKS)}
    taken = {*seen.kept, *(block for request in seen.requests for block, _ in request)}
    free = "".join(f"M{x} {y}h14v14h-14z" for block, (x, y) in places.items() if block not in taken)
    kept = "".join("M{} {}h14v14h-14z".format(*places[block]) for block in seen.kept)
    if free:
        yield f'<path d="{free}" fill="none" stroke="var(--fig-grid)"/>'
    if kept:
        yield f'<path d="{kept}" fill="var(--fig-fill-0)" stroke="var(--fig-muted)" stroke-width="0.6"/>'
    for hue in range(1, 5):
        own = [pair for request in seen.requests[hue - 1 :: 4] for pair in request]
        empty = "".join("M{} {}h14v14h-14z".format(*places[block]) for block, held in own if held < SLOTS)
        full = "".join(
            "M{} {}h{w}v14h-{w}z".format(*places[block], w=round(14 * held / SLOTS)) for block, held in own if held
        )
        if empty:
            colours = f'fill="var(--fig-fill-{hue})" stroke="var(--fig-accent-{hue})"'
            yield f'<path d="{empty}" {colours} stroke-width="0.6"/>'
        if full:
            yield f'<path d="{full}" fill="var(--fig-accent-{hue})"/>'


def _svg(width: int, height: int, title: str, desc: str, lines: Sequence[str]) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"  <title>{escape(title)}</title>\n  <desc>{escape(desc)}</desc>\n{body}\n</svg>\n"
    )


PLOTS = {"block-tables.svg": block_tables, "memory-before-and-after.svg": memory_before_and_after}
