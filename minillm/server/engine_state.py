"""GET /engine: what the engine holds at this moment. For the page at `/`, and for whoever wants to draw their own.

However many ask, the engine is looked at a few times a second at most, between two of its steps; the rest is done
elsewhere. Of other clients' requests it tells how many tokens they have, and never which.
"""

import asyncio
from typing import Literal

from pydantic import BaseModel

from minillm.engine.engine import Engine
from minillm.engine.log import StepRecord
from minillm.engine.snapshot import RequestState, Snapshot, block_counts, take_snapshot
from minillm.errors import InputError
from minillm.machine.limits import known_limits
from minillm.model import weight_bytes_per_pass
from minillm.server.lifecycle import shutting_down
from minillm.server.metrics import EngineMetrics
from minillm.server.service import Service

FRESH_S = 0.2
"""A state of this age is as good as a new one: a page asks three times a second."""

MOST_CELLS = 384
"""Cells of the map of blocks: as many as fit on a telephone's screen."""


class RequestTokens(BaseModel):
    """One request, by the id of its answer (with "-0", "-1", ... where that has several choices).

    prompt_tokens, of which cached_tokens were found in the prefix cache; computed_tokens have keys and values now, of
    prompt and answer; generated_tokens of at most max_tokens. cells: where its blocks lie on the map.
    """

    id: str
    state: Literal["running", "waiting"]
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    max_tokens: int
    preemptions: int
    blocks: int
    cells: list[int]


class BlockMap(BaseModel):
    """The KV cache's pool of blocks, `block_size` tokens each.

    used: by requests that run; shared: of these, by more than one; kept: by none, with contents that the prefix cache
    can still find. The lists say the same of each cell of `per_cell` blocks in a row.
    """

    block_size: int
    total: int
    used: int
    shared: int
    kept: int
    per_cell: int
    used_by_cell: list[int]
    shared_by_cell: list[int]
    kept_by_cell: list[int]


class StepTime(BaseModel):
    """A step: how long it took, and how many tokens of how many requests it computed."""

    seconds: float
    tokens: int
    requests: int


class Memory(BaseModel):
    """What a pass reads: all weights, and keys and values of the tokens so far; bandwidth_bytes_per_s: what this
    machine's memory delivers, null where nobody has measured it.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    bandwidth_bytes_per_s: float | None


class EngineState(BaseModel):
    """The answer to /engine. has_chat: whether the model has a chat template.

    requests: the first of those that run and the first of those that wait, of `running` and `waiting` in all. steps:
    the last ones, the newest last.
    """

    model: str
    max_model_len: int
    has_chat: bool
    max_batch_size: int
    running: int
    waiting: int
    requests: list[RequestTokens]
    blocks: BlockMap
    steps: list[StepTime]
    memory: Memory


class EngineWatch:
    """The engine's state as JSON, made anew when somebody asks and the last one is not fresh any more."""

    def __init__(self, service: Service, metrics: EngineMetrics) -> None:
        self._service, self._metrics = service, metrics
        self._memory: Memory | None = None
        self._making: asyncio.Task[bytes] | None = None
        self._made_s = 0.0  # on the event loop's clock

    async def state(self) -> bytes:
        """Raises RequestError where the engine has ended."""
        loop = asyncio.get_running_loop()
        if self._making is None or (self._making.done() and loop.time() - self._made_s > FRESH_S):
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)  # who goes away takes it from nobody else

    async def _make(self) -> bytes:
        try:
            snapshot, steps = await self._service.serving.look(self._look)
            return await asyncio.to_thread(lambda: self._state(snapshot, steps).model_dump_json().encode())
        except InputError:
            raise shutting_down() from None
        finally:
            self._made_s = asyncio.get_running_loop().time()

    def _look(self, engine: Engine) -> tuple[Snapshot, tuple[StepRecord, ...]]:
        return take_snapshot(engine), tuple(self._metrics.last_steps)

    def _state(self, snapshot: Snapshot, steps: tuple[StepRecord, ...]) -> EngineState:
        served, scheduler = self._service.served, self._service.serving.engine.scheduler
        counts = block_counts(snapshot, MOST_CELLS)
        return EngineState(
            model=served.name,
            max_model_len=served.max_length,
            has_chat=served.tokenizer.has_chat_template,
            max_batch_size=scheduler.max_batch_size,
            running=snapshot.num_running,
            waiting=snapshot.num_waiting,
            requests=[_tokens(one, counts.per_cell) for one in snapshot.requests],
            blocks=BlockMap(
                block_size=scheduler.block_size,
                total=len(snapshot.users),
                used=sum(counts.used),
                shared=sum(counts.shared),
                kept=sum(counts.kept),
                per_cell=counts.per_cell,
                used_by_cell=list(counts.used),
                shared_by_cell=list(counts.shared),
                kept_by_cell=list(counts.kept),
            ),
            steps=[_step(one) for one in steps],
            memory=self._known_memory(),
        )

    def _known_memory(self) -> Memory:
        """What was measured before: to measure now would take it from those that are being answered."""
        if self._memory is None:
            engine = self._service.serving.engine
            limits = known_limits(engine.model.device)
            self._memory = Memory(
                weight_bytes=weight_bytes_per_pass(engine.model),
                kv_bytes_per_token=engine.cache.bytes_per_token,
                bandwidth_bytes_per_s=None if limits is None else limits.bandwidth_bytes_per_s,
            )
        return self._memory


def _tokens(one: RequestState, per_cell: int) -> RequestTokens:
    return RequestTokens(
        id=one.id,
        state="running" if one.running else "waiting",
        prompt_tokens=one.prompt,
        cached_tokens=one.cached,
        computed_tokens=one.computed,
        generated_tokens=one.generated,
        max_tokens=one.max_tokens,
        preemptions=one.preemptions,
        blocks=len(one.blocks),
        cells=sorted({block // per_cell for block in one.blocks}),
    )


def _step(record: StepRecord) -> StepTime:
    seconds = record.schedule_s + record.forward_s + record.sample_s
    return StepTime(seconds=seconds, tokens=record.num_tokens, requests=len(record.parts))
