"""What `minillm inspect` prints: facts, a picture of the parameters, sentences; or JSON for a program."""

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from minillm.inspection.findings import Findings
from minillm.inspection.outline import Outline
from minillm.inspection.parts import HEAD
from minillm.inspection.stored import by_dtype
from minillm.inspection.vocabulary import AddedToken, Vocabulary, speaks_of
from minillm.loading.progress import size_text

LABEL_WIDTH = 15
NARROW = 60
TEMPLATE_LINES = 3
BLOCKS, PLAIN = " ▏▎▍▌▋▊▉█", " #"
COLOURS = {"embedding": "blue", "attention": "green", "MLP": "magenta", "norms": "yellow", "head": "cyan"}


def print_report(findings: Findings, console: Console, whole_template: bool = False) -> None:
    """Everything, as wide as the console is."""
    for label, text in _head(findings):
        _row(console, label, text)
    _print_parts(findings, console)
    for label, text in (*_stored(findings), *_vocabulary(findings.found.vocabulary)):
        _row(console, label, text)
    _print_templates(findings.found.vocabulary, console, whole_template)
    if findings.sampling:
        wishes = ", ".join(f"{name} {value:g}" for name, value in findings.sampling.items())
        _row(console, "sampling", f"its authors use {wishes}; SamplingParams says what is used here")
    _print_sentences(console, "what is unusual about it", findings.unusual)
    console.print()
    if findings.refusals:
        _print_sentences(console, "minillm does not run it", findings.refusals, space=False)
    else:
        console.print(Text("minillm runs it.", style="bold"))


def _head(findings: Findings) -> Iterable[tuple[str, str]]:
    found, o = findings.found, findings.outline
    size = found.stored.total_bytes
    count = "number of parameters not known" if findings.parameters is None else f"{findings.parameters:,} parameters"
    yield "model", f"{found.name}: {count}" + (f", {size_text(size)}" if size else "")
    yield "files", found.origin
    family = f": {o.family}" if o.family else ""
    yield "architecture", o.architecture + (f" ({o.class_name})" if o.class_name else "") + family
    yield "layers", f"{_number(o.layers)}, of hidden size {_number(o.hidden_size)}, MLP {_number(o.intermediate_size)}"
    heads = f"{_number(o.heads)} query heads, {_number(o.kv_heads)} key/value heads"
    yield "attention", f"{heads}, each of {_number(o.head_dim)}"
    yield "context", f"{_number(o.context)} tokens{_rotation(o)}"
    if o.kv_bytes_per_token is not None:
        full = o.kv_bytes_at_full_context
        whole = "" if full is None else f", {size_text(full)} for the whole context"
        yield "KV cache", f"{o.kv_bytes_per_token:,} bytes per token in 16 bits{whole}"


def _rotation(o: Outline) -> str:
    if o.config is None:
        return ""
    scaling = o.config.rope_scaling
    return f"; rotary base {o.config.rope_theta:,.10g}, {'not scaled' if scaling is None else scaling.kind}"


def _stored(findings: Findings) -> Iterable[tuple[str, str]]:
    tensors = findings.found.stored.tensors
    if tensors is None:
        yield "stored as", "not known: the headers of the tensors are not there"
        return
    label = "stored as"
    for dtype, (count, size) in by_dtype(tensors).items():
        yield label, f"{dtype}, {_counted(count, 'tensor')}" + ("" if size is None else f", {size_text(size)}")
        label = ""


def _vocabulary(words: Vocabulary | None) -> Iterable[tuple[str, str]]:
    if words is None:
        yield "tokenizer", "none that can be read"
        return
    merges = "" if words.merges is None else f", {words.merges:,} merges"
    yield "tokenizer", f"{words.kind}: {_number(words.size)} tokens{merges}"
    if words.pre_tokenizer:
        yield "pre-tokenizer", words.pre_tokenizer
    adds = "" if words.bos is None else ", added to every text" if words.adds_bos else ", not added to a text"
    yield "BOS", _token(words.bos) + adds
    yield "EOS", _token(words.eos)
    special = sum(token.is_special for token in words.added)
    yield (
        "added tokens",
        f"{len(words.added):,}, {'all' if special == len(words.added) else f'{special:,}'} of them special",
    )


def _token(token: AddedToken | None) -> str:
    return "none" if token is None else f"{token.text} ({token.id})"


def _print_templates(words: Vocabulary | None, console: Console, whole: bool) -> None:
    if words is None or not words.templates:
        _row(console, "chat template", "none: it continues texts")
        return
    for name, source in words.templates.items():
        lines = source.splitlines() or [""]
        reads = [what for what in ("tools", "enable_thinking", "bos_token") if speaks_of(source, what)]
        about = f"{_counted(len(source), 'character')}; " + (f"reads {', '.join(reads)}" if reads else "without tools")
        _row(console, "chat template", about if name == "default" else f"{name}: {about}")
        shown = lines if whole else lines[:TEMPLATE_LINES]
        for line in shown:
            room = console.width - 4
            cut = line if whole or len(line) <= room else line[: room - 3] + "..."
            console.print(Text(f"  | {_printable(cut)}", style="dim"), soft_wrap=True)
        if len(lines) > len(shown):
            rest = _counted(len(lines) - len(shown), "more line")
            console.print(Text(f"  | ({rest}: --template shows all)", style="dim"), soft_wrap=True)


def _print_parts(findings: Findings, console: Console) -> None:
    """One bar per part, as long as its share of all."""
    if findings.parts is None:
        return
    total = max(1, sum(findings.parts.values()))
    heading = "stored numbers by part (packed: not parameters)" if findings.packed else "parameters by part"
    heading += "" if findings.found.stored.tensors is not None else ", as its config has them"
    console.print(Text(f"\n{heading}", style="bold"))
    room = console.width - 2 - 11 - 24 if console.width >= NARROW else 0
    for part, count in findings.parts.items():
        share = count / total
        line = Text(f"  {part:<11}")
        if room:
            line.append(f"{_bar(share, room, console):<{room}}", style=COLOURS.get(part, ""))
        is_tied = part == HEAD and not count and findings.outline.tied
        line.append(f"{'(tied)' if is_tied else f'{count:,}':>16}{'' if is_tied else f'{100 * share:5.1f} %':>8}")
        console.print(line, soft_wrap=True)
    console.print()


def _bar(share: float, room: int, console: Console) -> str:
    """A bar of up to `room` characters, in eighths where the terminal has the signs for them."""
    if not console.encoding.startswith("utf"):
        return PLAIN[1] * round(share * room)
    eighths = round(share * room * 8)
    return BLOCKS[8] * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")


def _print_sentences(console: Console, heading: str, sentences: Iterable[str], space: bool = True) -> None:
    found = list(sentences) or ["nothing: it is a plain Llama"]
    console.print(Text(("\n" if space else "") + heading, style="bold"))
    for sentence in map(_printable, found):
        filled = textwrap.fill(sentence, console.width, initial_indent="- ", subsequent_indent="  ")
        console.print(Text(filled), soft_wrap=True)


def _row(console: Console, label: str, text: str) -> None:
    """`label          text`, the text wrapped into a column of its own; under the label where it is narrow."""
    text = _printable(text)
    if console.width < NARROW:
        if label:
            console.print(Text(label, style="bold"))
        filled = textwrap.fill(text, console.width, initial_indent="  ", subsequent_indent="  ")
        console.print(Text(filled), soft_wrap=True)
        return
    filled = textwrap.fill(text, max(20, console.width - LABEL_WIDTH), break_on_hyphens=False)
    line = Text(f"{label:<{LABEL_WIDTH}}", style="bold")
    line.append(textwrap.indent(filled, " " * LABEL_WIDTH)[LABEL_WIDTH:], style="not bold")
    console.print(line, soft_wrap=True)


def _printable(text: str) -> str:
    """Text from somebody's files: what would move the cursor, or colour the terminal, is written as an escape."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def as_json(findings: Findings) -> dict[str, Any]:
    """The same for programs: what is not known is null."""
    found, o, words = findings.found, findings.outline, findings.found.vocabulary
    return {
        "model": found.name,
        "path": str(found.path),
        "runs": not findings.refusals,
        "refusals": findings.refusals,
        "architecture": {
            "model_type": o.architecture,
            "class": o.class_name,
            "family": o.family,
            **{name: getattr(o, name) for name in _SIZES},
            "tie_word_embeddings": o.tied,
        },
        "config": None if o.config is None else asdict(o.config),
        "parameters": findings.parameters,
        "parameters_by_part": None if findings.packed or findings.parts is None else dict(findings.parts),
        "stored": _stored_as_json(findings),
        "stored_bytes": found.stored.total_bytes,
        "kv_bytes_per_token": o.kv_bytes_per_token,
        "kv_bytes_at_full_context": o.kv_bytes_at_full_context,
        "tokenizer": None if words is None else _vocabulary_as_json(words),
        "sampling": dict(findings.sampling),
        "unusual": findings.unusual,
    }


_SIZES = (
    "layers",
    "hidden_size",
    "intermediate_size",
    "heads",
    "kv_heads",
    "head_dim",
    "context",
    "vocab_size",
)


def _stored_as_json(findings: Findings) -> Mapping[str, Any] | None:
    tensors = findings.found.stored.tensors
    if tensors is None:
        return None
    return {dtype: {"tensors": count, "bytes": size} for dtype, (count, size) in by_dtype(tensors).items()}


def _vocabulary_as_json(words: Vocabulary) -> dict[str, Any]:
    values = asdict(words)
    values["chat_templates"] = values.pop("templates")
    return values
