"""What `minillm fit` prints and draws: the four parts, a bar against the memory there is, the ways out."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from minillm.errors import InputError
from minillm.machine.describe import Description
from minillm.machine.footprint import Footprint
from minillm.machine.memory import MOST_GPUS, Demand, kept_tokens, kv_bytes_per_token, shard_of_format
from minillm.machine.shape import num_active_params, num_params
from minillm.machine.verdict import (
    COMFORTABLE_SHARE,
    DOES_NOT_FIT,
    FITS,
    TIGHT,
    Question,
    gpus_needed,
    judge,
    largest_batch,
    largest_context,
    smaller_formats,
)

PARTS = ("weights", "kv_cache", "activations", "overhead")
LABELS = {"weights": "weights", "kv_cache": "KV cache", "activations": "activations", "overhead": "overhead"}
LOOKS = {"weights": ("█", "blue"), "kv_cache": ("▓", "green"), "activations": ("▒", "yellow"), "overhead": ("░", "red")}
PLAIN_SIGNS = dict(zip("█▓▒░·", "#=-:.", strict=True))
"""For a terminal or a file whose encoding has no blocks."""

VERDICT_STYLES = {FITS: "bold green", TIGHT: "bold yellow", DOES_NOT_FIT: "bold red"}
OVERHEADS = {
    "NVIDIA": "CUDA context and kernels, a round figure",
    "AMD": "HIP context and kernels, taken to be what CUDA's are",
    "Apple": "none counted: Metal's is in what the system keeps",
    None: "none on a CPU",
}
NARROW = 60
"""Columns below which the figures are printed first, and where they come from under them."""

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def gb(size: int) -> str:
    """In GB (10^9 bytes); what is less than one, in MB."""
    return f"{size / 1e9:,.2f} GB" if abs(size) >= 995_000_000 else f"{size / 1e6:,.1f} MB"


def gib(size: int) -> str:
    """In GiB (2^30 bytes); what is less than one, in MiB."""
    return f"{size / 2**30:,.2f} GiB" if abs(size) >= 0.995 * 2**30 else f"{size / 2**20:,.1f} MiB"


def print_report(described: Description, questions: Mapping[str, Question], *, in_detail: bool) -> None:
    """One place `in_detail`, or the verdicts for several."""
    console = Console(highlight=False)
    first = next(iter(questions.values()))
    _print_head(described, first, console)
    narrow = console.width < NARROW
    console.print(_parts_table(first, with_derivations=not narrow))
    if narrow:
        for part, how in zip((*PARTS, "total"), _derivations(first), strict=True):
            console.print(Text(f"- {LABELS.get(part, part)}: {how}"))
    console.print()
    if in_detail:
        for name, question in questions.items():
            _print_verdict(name, question, console)
    else:
        table = _verdict_table(questions)
        if Measurement.get(console, console.options.update(width=1000), table).maximum <= console.width:
            console.print(table)
        else:
            _print_verdict_lines(questions, console)


def _print_head(described: Description, question: Question, console: Console) -> None:
    shape, load = described.shape, question.load
    console.print(Text(f"{described.name}: {num_params(shape):,} parameters ({described.origin})"))
    if not shape.is_dense:
        console.print(
            f"not dense: {num_active_params(shape):,} of them work on each token, but all must be held "
            f"({shape.num_experts} experts, {shape.num_experts_per_tok} per token)"
        )
    sequences = "sequence" if load.batch == 1 else "sequences"
    console.print(f"{load.batch:,} {sequences} of {load.context:,} tokens; {_number_types(question)}")
    if load.gpus > 1:
        console.print(f"shared out over {load.gpus} GPUs by tensor parallelism; the figures are those of each GPU")
    console.print()


def _number_types(question: Question) -> str:
    load = question.load
    if load.weights.name == load.dtype == load.kv_dtype:
        return f"all numbers in {load.dtype}"
    return f"weights {load.weights.name}, activations {load.dtype}, KV cache {load.kv_dtype}"


def _parts_table(question: Question, *, with_derivations: bool) -> Table:
    need = question.demand()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for part, how in zip((*PARTS, "total"), _derivations(question), strict=True):
        size = getattr(need, part)
        table.add_row(LABELS.get(part, part), gb(size), gib(size), *([how] if with_derivations else []))
    return table


def _derivations(question: Question) -> tuple[str, str, str, str, str]:
    """Where each figure comes from, in the order of PARTS; then what the total is set beside."""
    load = question.load
    part = shard_of_format(question.shape, load.gpus, load.weights)
    kept = kept_tokens(part, load.context, load.block_size)
    window = part.sliding_window
    limit = f" (window {window:,})" if window is not None and window < load.context else ""
    if question.stored_bytes is not None:
        weights = "the tensors of the file, as they are stored"
    elif load.weights.block == 1 and load.weights.everywhere:
        weights = f"{num_params(part):,} x {load.weights.rest_bytes} bytes"
    else:
        rest = "norms in float32" if load.weights.everywhere else "embedding, head and norms in 16 bit"
        weights = f"{load.weights.bits_per_weight:.3g} bits per weight with its scales; {rest}"
    return (
        weights,
        f"{load.batch:,} x {kept:,} tokens{limit} x {kv_bytes_per_token(part, load.kv_dtype):,} bytes",
        f"estimate for {load.tokens_at_peak:,} tokens in a pass",
        OVERHEADS[question.vendor],
        f"rule of thumb: 1.2 x (weights + KV) = {gb(question.demand().rule_of_thumb)}",
    )


def _print_verdict(name: str, question: Question, console: Console) -> None:
    need, load = question.demand(), question.load
    verdict = judge(need.total, question.memory)
    where = f"{load.gpus} x {name}" if load.gpus > 1 else name
    left = question.memory - need.total
    rest = f"{gb(left)} left" if left >= 0 else f"{gb(-left)} too much"
    line = Text(f"{where}, {gb(question.memory)} = {gib(question.memory)}{' each' if load.gpus > 1 else ''}: ")
    console.print(line.append(verdict, VERDICT_STYLES[verdict]).append(f", {rest}"))
    if question.note:
        console.print(Text(question.note))
    console.print(_printable(bar(need, question.memory, min(console.width, 100) - 2), console))
    console.print(_printable(_legend(), console))
    console.print()
    console.print(f"what fits, each alone, with {1 - COMFORTABLE_SHARE:.0%} of the memory to spare:")
    for way in ways_out(question, verdict):
        console.print(Text(f"- {way}"))


def bar(need: Demand, memory: int, width: int) -> Text:
    """`need` drawn to the scale of `memory`: the memory between brackets, what does not fit beyond them."""
    scale = width / max(need.total, memory)
    inside = max(1, round(memory * scale))
    cells = Text()
    end = 0
    for part in PARTS:
        sign, style = LOOKS[part]
        end += getattr(need, part)
        cells.append(sign * (round(end * scale) - len(cells)), style)
    cells.append("·" * (inside - len(cells)), "dim")
    return Text.assemble("[", cells[:inside], "]", cells[inside:])


def _printable(drawn: Text, console: Console) -> Text:
    """The same with plain signs, one for one, where the output's encoding has none of the others."""
    try:
        drawn.plain.encode(console.encoding)
    except UnicodeEncodeError:
        drawn.plain = drawn.plain.translate(str.maketrans(PLAIN_SIGNS))
    return drawn


def _legend() -> Text:
    legend = Text(" ")
    for part in PARTS:
        sign, style = LOOKS[part]
        legend.append(sign * 2, style).append(f" {LABELS[part]}  ")
    return legend.append("··", "dim").append(" free  [ ] memory")


def ways_out(question: Question, verdict: str) -> list[str]:
    """What to change, or how far one could go; all with a tenth of the memory to spare."""
    load = question.load
    context, batch = largest_context(question), largest_batch(question)
    longest = question.shape.max_position_embeddings
    full = ", all that the model was made for" if context == longest else ""
    ways = [
        f"context: {context:,} tokens at batch {load.batch:,}{full}" if context else "context: not even one token",
        f"batch: {batch:,} x {load.context:,} tokens" if batch else f"batch: not even 1 x {load.context:,} tokens",
    ]
    if verdict != FITS:
        formats = smaller_formats(question)
        ways.append(f"quantization: {', '.join(formats) if formats else 'none is small enough by itself'}")
        if question.several:
            ways.append(f"GPUs: {_gpus_way(question)}")
    return ways


def _gpus_way(question: Question) -> str:
    gpus = gpus_needed(question)
    if gpus is None:
        return f"up to {MOST_GPUS} are not enough with tensor parallelism"
    share = question.demand(replace(question.load, gpus=gpus)).total
    return f"{gpus} with tensor parallelism, {gb(share)} on each"


def _verdict_table(questions: Mapping[str, Question]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("GPU", no_wrap=True)
    for heading in ("memory", "left"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("context", "batch", "GPUs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, question in questions.items():
        total = question.demand().total
        verdict = judge(total, question.memory)
        table.add_row(
            name,
            gb(question.memory),
            gb(question.memory - total),
            Text(verdict, VERDICT_STYLES[verdict]),
            f"{largest_context(question):,}",
            f"{largest_batch(question):,}",
            str(gpus_needed(question) or "-"),
        )
    table.caption = _TABLE_LEGEND
    table.caption_justify = "left"
    return table


_TABLE_LEGEND = "context, batch: the most that fits, the other as asked; GPUs: the fewest on which it fits"


def _print_verdict_lines(questions: Mapping[str, Question], console: Console) -> None:
    """The same as the table, where the terminal is too narrow for it: no number is cut."""
    for name, question in questions.items():
        total = question.demand().total
        verdict = judge(total, question.memory)
        console.print(Text(f"{name}, {gb(question.memory)}: ").append(verdict, VERDICT_STYLES[verdict]))
        context, batch, gpus = largest_context(question), largest_batch(question), gpus_needed(question) or "-"
        console.print(f"  left {gb(question.memory - total)}, context {context:,}, batch {batch:,}, GPUs {gpus}")
    console.print(_TABLE_LEGEND)


def print_footprints(footprints: Iterable[Footprint]) -> None:
    """Predicted beside measured, each row as soon as it is there."""
    console = Console(highlight=False)
    console.print("float32 on this CPU, prompts in one pass; MB are 10^6 bytes")
    console.print(" context  batch   weights  KV cache  activations  predicted  measured   error")
    for run in footprints:
        need = run.predicted
        console.print(
            f"{run.context:>8,} {run.batch:>6} {need.weights / 1e6:>9.1f} {need.kv_cache / 1e6:>9.1f} "
            f"{need.activations / 1e6:>12.1f} {need.total / 1e6:>10.1f} {run.measured / 1e6:>9.1f} {run.error:>+7.1%}"
        )


def plot(described: Description, questions: Mapping[str, Question], file: str) -> None:
    """Stacked bars, one per place, a line at its memory. Raises InputError without matplotlib or for another suffix."""
    if Path(file).suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"{file!r} is no picture's name: it must end in {', '.join(PLOT_SUFFIXES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError('drawing needs matplotlib: pip install "minillm[book]"') from None
    figure = Figure(figsize=(8, 1.6 + 0.5 * len(questions)), layout="constrained")
    axes = figure.add_subplot()
    for row, question in enumerate(questions.values()):
        need, left = question.demand(), 0.0
        for part, color in zip(PARTS, ("tab:blue", "tab:green", "tab:orange", "tab:red"), strict=True):
            size = getattr(need, part) / 1e9
            axes.barh(row, size, left=left, color=color, height=0.6, label=LABELS[part] if row == 0 else None)
            left += size
        memory = question.memory / 1e9
        axes.plot([memory, memory], [row - 0.4, row + 0.4], color="black", label="memory" if row == 0 else None)
    axes.set_yticks(range(len(questions)), list(questions))
    axes.invert_yaxis()
    axes.set_xlabel("GB (10^9 bytes) per GPU")
    load = next(iter(questions.values())).load
    axes.set_title(f"{described.name}, {load.batch:,} x {load.context:,} tokens, weights {load.weights.name}")
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(file)
