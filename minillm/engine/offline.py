"""generate_many: a list of requests through an engine to the end, in the order in which they were given."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from minillm.config import ModelConfig
from minillm.engine.answer import Answer
from minillm.engine.block_pool import blocks_for
from minillm.engine.engine import Engine
from minillm.engine.log import StepLog
from minillm.engine.paged_kv_cache import blocks_that_fit
from minillm.generation import Completion
from minillm.model import Llama
from minillm.sampling_params import SamplingParams
from minillm.tokenizer import Tokenizer

BLOCK_SIZE = 16
MAX_BATCH_SIZE = 16
"""Requests at a time. On a CPU more of them gain little: a pass over sixteen rows is bound by arithmetic already."""

TITLE_TOKENS = 24
"""Of a prompt, in a timeline: more do not fit into a row."""

KV_BYTES = 2**30
"""What the cache takes at most, unless a single request needs more."""


def generate_many(
    model: Llama,
    tokenizer: Tokenizer,
    requests: Sequence[tuple[Sequence[int], SamplingParams]],
    *,
    kv_dtype: torch.dtype | None = None,
    progress: bool = False,
    timeline: Path | None = None,
) -> list[Completion]:
    """The completions of (prompt ids, params), which have been checked. kv_dtype: as for `Engine`. progress: a bar on
    stderr, in tokens. timeline: where to write the page that shows who computed what when (see `timeline`).
    """
    log = StepLog()
    if not requests:
        if timeline is not None:
            _draw(timeline, log, {})
        return []
    num_blocks = _blocks(model.config, kv_dtype or model.dtype, requests)
    engine = Engine(
        model,
        num_blocks=num_blocks,
        kv_dtype=kv_dtype,
        block_size=BLOCK_SIZE,
        max_batch_size=MAX_BATCH_SIZE,
        observer=None if timeline is None else log.append,
    )
    answers = [Answer(engine, tokenizer, ids, params) for ids, params in requests]
    by_id = {answer.request.request_id: answer for answer in answers}
    with progress_bar(enabled=progress) as bar:
        done = bar.add_task("requests", total=len(answers), tokens=0)
        while engine.has_work:
            for output in engine.step():
                piece = by_id[output.request.request_id].take(output)
                bar.advance(done, int(piece.finish_reason is not None))
            bar.update(done, tokens=sum(answer.request.num_generated for answer in answers))
    if timeline is not None:
        beginnings = {name: answer.request.prompt_ids[:TITLE_TOKENS] for name, answer in by_id.items()}
        _draw(timeline, log, {name: tokenizer.decode(ids) for name, ids in beginnings.items()})
    return [answer.completion() for answer in answers]


def _draw(path: Path, log: StepLog, titles: Mapping[str, str]) -> None:
    from minillm.engine.timeline import write_timeline  # for this alone: a run without a page need not load it

    write_timeline(path, log, titles)


def _blocks(
    config: ModelConfig, kv_dtype: torch.dtype, requests: Sequence[tuple[Sequence[int], SamplingParams]]
) -> int:
    """Enough for the largest requests side by side, within KV_BYTES; and in any case for the largest one."""
    context = config.max_position_embeddings
    lengths = (min(len(ids) + params.max_tokens, context) for ids, params in requests)
    needs = sorted((blocks_for(length, BLOCK_SIZE) for length in lengths), reverse=True)
    affordable = blocks_that_fit(KV_BYTES, config, kv_dtype, BLOCK_SIZE)
    return max(needs[0], min(sum(needs[:MAX_BATCH_SIZE]), affordable))


def progress_bar(*, enabled: bool) -> Progress:
    """A bar on stderr: how many requests have ended, and, as the task's field `tokens`, how many tokens there are."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), disable=not enabled)
