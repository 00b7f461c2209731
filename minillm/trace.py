"""The journey of a request as a table: each step, what went in, what came out, its time, the bytes it moved."""

import math
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minillm.generation import Generation
from minillm.kv_cache import KVCache
from minillm.model import weight_bytes_per_pass


@dataclass(frozen=True)
class JourneyStep:
    """One row: `seconds` is the step's total time; `moved` says which bytes it read or wrote, "" for next to none."""

    name: str
    went_in: str
    came_out: str
    seconds: float
    moved: str


def journey(generation: Generation) -> list[JourneyStep]:
    """The five steps of a request that has run (to its end or until it was stopped)."""
    model, steps, ids = generation.model, generation.steps, generation.prompt_ids
    weights = human_bytes(weight_bytes_per_pass(model))
    per_token = generation.cache.bytes_per_token if isinstance(generation.cache, KVCache) else 0
    computed = len(ids) - generation.cached_tokens
    reused = f", {generation.cached_tokens} were in the cache" if generation.cached_tokens else ""
    kept = f"{human_bytes(computed * per_token)} of K and V written" if per_token else "nothing kept"
    tokenize = JourneyStep("tokenize", "text", f"{len(ids)} ids: {_some(ids)}", generation.tokenize_s, "")
    if not generation.prefill_s:
        return [tokenize, JourneyStep("prefill", f"{computed} ids at once{reused}", "stopped before its end", 0.0, "")]
    rows = [
        tokenize,
        JourneyStep(
            "prefill",
            f"{computed} ids at once{reused}",
            f"{model.config.vocab_size:,} logits",
            generation.prefill_s,
            f"{weights} of weights read, {kept}",
        ),
    ]
    if not steps:
        return rows
    first = steps[0]
    piece = repr(generation.tokenizer.decode([first.token_id], skip_special_tokens=False))
    rows.append(
        JourneyStep(
            "sample",
            f"{model.config.vocab_size:,} logits",
            f"id {first.token_id} = {piece}, p = {_probability(first.logprob)}",
            first.sample_s,
            "",
        )
    )
    if len(steps) > 1:
        rows.append(_decode_row(generation, weights, per_token))
    text = generation.text
    shown = sum(1 for piece in generation.pieces if piece.text)
    rows.append(
        JourneyStep(
            "detokenize",
            f"{len(steps)} ids",
            f"{len(text)} characters in {shown} pieces",
            generation.detokenize_s,
            "",
        )
    )
    return rows


def _decode_row(generation: Generation, weights: str, per_token: int) -> JourneyStep:
    """All passes of the decode loop in one row. The pass before the n-th token reads the context of n - 1 others."""
    passes = generation.steps[1:]
    first_context, last_context = generation.decode_contexts()
    if per_token:
        read = f"{human_bytes(first_context * per_token)} to {human_bytes(last_context * per_token)} of K and V"
        went_in, moved = "1 id each", f"per pass: {weights} of weights and {read} read"
    else:
        went_in, moved = f"{first_context} to {last_context} ids each", f"per pass: {weights} of weights read"
    forward_s = sorted(step.forward_s for step in passes)
    middle = human_seconds(forward_s[len(forward_s) // 2])
    return JourneyStep(
        f"decode x {len(passes)}",
        went_in,
        f"1 id each, median {middle} per pass",
        sum(step.forward_s + step.sample_s for step in passes),
        moved,
    )


def print_trace(generation: Generation, console: Console) -> None:
    """The journey's table, what memory allows, then one line per generated token."""
    table = Table(title="The journey of this request", title_justify="left", box=None, pad_edge=False)
    for heading in ("step", "in", "out"):
        table.add_column(heading, overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("bytes moved", overflow="fold")
    for row in journey(generation):
        cells = (row.name, row.went_in, row.came_out, human_seconds(row.seconds), row.moved)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    console.print()
    console.print(Text(ceiling_sentence(generation)))
    console.print()
    console.print(_token_table(generation))


def _token_table(generation: Generation) -> Table:
    """One row per generated token: when it was there, what it is, and how sure the model was."""
    table = Table(title="Its tokens", title_justify="left", box=None, pad_edge=False)
    for heading in ("#", "id", "token", "probability", "forward pass", "at"):
        table.add_column(heading, justify="left" if heading == "token" else "right", no_wrap=heading != "token")
    for number, (step, at_s) in enumerate(zip(generation.steps, generation.token_times_s, strict=True), start=1):
        text = repr(generation.tokenizer.decode([step.token_id], skip_special_tokens=False))
        forward = human_seconds(step.forward_s) if number > 1 else "(prefill)"
        end = f"  <- {step.finish_reason}" if step.finish_reason else ""
        cells = (
            str(number),
            str(step.token_id),
            text + end,
            _probability(step.logprob),
            forward,
            human_seconds(at_s),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def print_stats(generation: Generation, console: Console) -> None:
    """TTFT, TPOT, rates and KV bytes, one to a line."""
    m = generation.metrics()
    cached = f" ({m.cached_tokens} of them from the cache)" if m.cached_tokens else ""
    lines = [
        ("prompt", f"{m.prompt_tokens} tokens{cached}"),
        ("completion", f"{m.completion_tokens} tokens"),
        ("TTFT", "no token came" if m.ttft_s is None else f"{human_seconds(m.ttft_s)}  (time to first token)"),
        (
            "TPOT",
            f"{human_seconds(m.tpot_s)}  (time per output token)" if m.tpot_s else "needs a second token",
        ),
        ("prefill", f"{m.prefill_tokens_per_s:,.0f} tokens/s"),
        (
            "decode",
            f"{m.decode_tokens_per_s:,.1f} tokens/s" if m.decode_tokens_per_s else "needs a second token",
        ),
        (
            "KV cache",
            f"{m.kv_bytes:,} bytes held"
            if isinstance(generation.cache, KVCache)
            else "none: every token was computed again",
        ),
    ]
    if m.mbu is not None and m.bandwidth_ceiling_tokens_per_s is not None:
        bandwidth, read = generation.bandwidth_bytes_per_s or 0.0, sum(generation.decode_bytes_per_pass())
        why = f"{human_bytes(round(bandwidth))}/s over {human_bytes(round(read))} per token"
        lines += [
            ("ceiling", f"{m.bandwidth_ceiling_tokens_per_s:,.1f} tokens/s  ({why})"),
            ("MBU", f"{_percent(m.mbu)}  (model bandwidth utilization: decode / ceiling)"),
        ]
    for name, value in lines:
        console.print(Text(f"{name:<11}{value}"))


CACHED_BYTES = 128 * 10**6
"""Weights up to this size may stay in a processor's caches from one token to the next; larger ones are taken not to."""


def ceiling_sentence(generation: Generation) -> str:
    """What this machine's memory allows the request in decode, and how near it came."""
    metrics, bandwidth = generation.metrics(), generation.bandwidth_bytes_per_s
    reached, most, share = metrics.decode_tokens_per_s, metrics.bandwidth_ceiling_tokens_per_s, metrics.mbu
    if bandwidth is None:
        return "There is no ceiling here: this machine's memory bandwidth could not be measured."
    if reached is None or most is None or share is None:
        return (
            f"This machine reads {human_bytes(round(bandwidth))} per second. What that allows in decode can only be"
            " compared with an answer of at least two tokens."
        )
    sentence = (
        f"This machine reads {human_bytes(round(bandwidth))} per second, and one token's pass has to read"
        f" {human_bytes(round(sum(generation.decode_bytes_per_pass())))}: no program can decode faster than {most:,.1f}"
        f" tokens per second here. This run decoded {reached:,.1f}, which is {_percent(share)} of that."
    )
    if share > 1 and generation.decode_bytes_per_pass()[0] <= CACHED_BYTES:
        sentence += (
            " More than all? Weights this small stay in the processor's own caches and need not be read from memory."
        )
    elif share > 1:
        sentence += (
            " More than all? Then the memory is faster than it was measured to be, most likely because something else"
            " was running at the time: measure it again with `minillm limits --again`."
        )
    elif not isinstance(generation.cache, KVCache):
        sentence += " Without a cache most of the time goes into computing earlier tokens again, not into reading."
    return sentence


def human_seconds(seconds: float) -> str:
    """Three digits at most, in the unit that suits: 0.21 ms, 35.7 ms, 1.24 s."""
    if seconds >= 0.99995:  # what would be rounded to 1000.0 ms
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e3:.2f} ms"


def human_bytes(count: int) -> str:
    """Decimal units, as bandwidths are quoted in: 23.0 kB, 538 MB, 1.61 GB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * unit:  # what would be rounded to a thousand of the smaller unit
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.1f} %"


def _probability(logprob: float) -> str:
    return f"{math.exp(logprob):.3f}"


def _some(ids: tuple[int, ...], most: int = 8) -> str:
    """The first few ids."""
    return " ".join(map(str, ids[:most])) + (" ..." if len(ids) > most else "")
