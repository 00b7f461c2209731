"""The engine's log: what each step computed, for whom, how long it took, and what the cache held.

    log = StepLog()
    engine = Engine(model, observer=log.append)

The log is the run as plain values: whoever wants to draw it, count in it or compare two policies needs no engine. An
engine without an observer computes nothing for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minillm.engine.request import Request
from minillm.engine.scheduler import Plan, Scheduler


@dataclass(frozen=True)
class ArrivalRecord:
    """A request that came in at `at_s`, with the limit on its tokens that the context leaves of `max_tokens`."""

    request_id: str
    at_s: float
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True)
class PartRecord:
    """`num_tokens` tokens of one request, from position `start` on; `samples`: its next token came out of them."""

    request_id: str
    start: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True)
class StepRecord:
    """One step. Times are seconds; `started_s` is counted from when the engine was made.

    schedule_s: the scheduler's part, before and after the pass. forward_s: the pass over the model, with what prepares
    it. sample_s: choosing tokens and handing them to their requests. Between the end of a step and the start of the
    next, the engine's owner works: with the texts, say.

    parts: what was computed; () where the pass failed. admitted: (request id, tokens found in the prefix cache).
    finished: (request id, reason), in this step or since the step before: by an abort, or a stop string in the text.
    arrived: requests that came in since the step before began.

    The counts are those of the pass itself, before its finished requests give their blocks back. tokens_held: slots
    that hold a computed token of a running request; a block that several share counts once. So of
    `blocks_used * block_size` reserved slots, all but `tokens_held` are waste.

    A record with `finished`, but without parts and times, is no step: the last requests were ended from outside.
    """

    started_s: float
    schedule_s: float
    forward_s: float
    sample_s: float
    parts: tuple[PartRecord, ...]
    admitted: tuple[tuple[str, int], ...]
    preempted: tuple[str, ...]
    finished: tuple[tuple[str, str], ...]
    num_running: int
    num_waiting: int
    blocks_used: int
    blocks_total: int
    tokens_held: int
    block_size: int
    arrived: tuple[ArrivalRecord, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed, of all requests together."""
        return sum(part.num_tokens for part in self.parts)

    @property
    def is_step(self) -> bool:
        """Whether something was done, if only in vain: not where requests were just ended from outside."""
        return bool(self.parts) or self.ended_s > self.started_s

    @property
    def ended_s(self) -> float:
        """When the step was over, on the clock of `started_s`."""
        return self.started_s + self.schedule_s + self.forward_s + self.sample_s


Observer = Callable[[StepRecord], None]


class StepLog(list[StepRecord]):
    """All steps of a run, in order. `append` is the observer that an engine is given."""


class Recorder:
    """What an engine tells as it happens. This one does not listen: it is the one of an engine without an observer."""

    def arrived(self, request: Request) -> None:
        """A request has come in."""

    def finished(self, request: Request, reason: str) -> None:
        """A request has ended, in a step or between two."""

    def begin(self) -> None:
        """A step begins, with its scheduling."""

    def scheduled(self, plan: Plan) -> None:
        """The pass over the model begins."""

    def forwarded(self) -> None:
        """The pass is over; the scheduler counts what it computed."""

    def computed(self) -> None:
        """That is counted; sampling begins."""

    def end(self) -> None:
        """The step is over: its tokens are with their requests."""

    def failed(self) -> None:
        """The pass has failed, and its requests have ended."""

    def aborted(self) -> None:
        """A request has been ended between two steps."""


LAPS: tuple[str, ...] = ("schedule_s", "forward_s", "sample_s")


class StepRecorder(Recorder):
    """Makes a record of each step for `observer`. `now` is the clock, in seconds."""

    def __init__(self, observer: Observer, scheduler: Scheduler, now: Callable[[], float]) -> None:
        self._observer, self._scheduler, self._now = observer, scheduler, now
        self._epoch = self._lap_began = self._step_began = now()
        self._seconds = dict.fromkeys(LAPS, 0.0)
        self._plan = Plan()
        self._parts: tuple[PartRecord, ...] = ()
        self._counts: dict[str, int] = {}
        self._arrived: list[ArrivalRecord] = []
        self._finished: list[tuple[str, str]] = []

    def arrived(self, request: Request) -> None:
        """With its time: how long it waited is seen from here on."""
        prompt = len(request.prompt_ids)
        at_s = self._now() - self._epoch
        self._arrived.append(ArrivalRecord(request.request_id, at_s, prompt, request.max_length - prompt))

    def finished(self, request: Request, reason: str) -> None:
        """For the record of this step, or of the next one."""
        self._finished.append((request.request_id, reason))

    def begin(self) -> None:
        """All watches to 0."""
        self._seconds = dict.fromkeys(LAPS, 0.0)
        self._step_began = self._lap_began = self._now()

    def scheduled(self, plan: Plan) -> None:
        """The parts as planned."""
        self._lap("schedule_s")
        self._plan = plan
        self._parts = tuple(
            PartRecord(part.request.request_id, part.request.num_computed, part.num_tokens, part.samples)
            for part in plan.scheduled
        )
        self._lap_began = self._now()

    def forwarded(self) -> None:
        """The pass's time."""
        self._lap("forward_s")

    def computed(self) -> None:
        """The counts: of the pass, before anybody gives blocks back."""
        self._lap("schedule_s")
        self._counts = self._count()
        self._lap_began = self._now()

    def end(self) -> None:
        """The record goes out."""
        self._lap("sample_s")
        self._tell(self._step_began, self._plan, self._parts)

    def failed(self) -> None:
        """A record in which nothing was computed."""
        self._lap("forward_s")
        self._counts = self._count()
        self._tell(self._step_began, self._plan, ())

    def aborted(self) -> None:
        """The next step says so. If that was the last request there is none: then it is said now."""
        if not self._scheduler.has_work:
            self._seconds = dict.fromkeys(LAPS, 0.0)
            self._counts = self._count()
            self._tell(self._now(), Plan(), ())

    def _lap(self, kind: str) -> None:
        """The time since the lap began belongs to `kind`, and the next lap begins."""
        now = self._now()
        self._seconds[kind] += now - self._lap_began
        self._lap_began = now

    def _count(self) -> dict[str, int]:
        scheduler, pool = self._scheduler, self._scheduler.pool
        return {
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "blocks_used": pool.num_used,
            "blocks_total": pool.num_blocks,
            "tokens_held": tokens_held(scheduler.running, scheduler.block_size),
            "block_size": scheduler.block_size,
        }

    def _tell(self, began: float, plan: Plan, parts: tuple[PartRecord, ...]) -> None:
        arrived, finished = tuple(self._arrived), tuple(self._finished)
        self._arrived, self._finished = [], []
        self._observer(
            StepRecord(
                started_s=began - self._epoch,
                parts=parts,
                admitted=tuple((request.request_id, request.num_cached) for request in plan.admitted),
                preempted=tuple(request.request_id for request in plan.preempted),
                finished=finished,
                arrived=arrived,
                **self._seconds,
                **self._counts,
            )
        )


def tokens_held(requests: Sequence[Request], block_size: int) -> int:
    """Slots that hold a computed token of one of the requests. A block that several share is counted once."""
    full: set[int] = set()
    begun: dict[int, int] = {}
    for request in requests:
        whole, rest = divmod(request.num_computed, block_size)
        full.update(request.block_table[:whole])
        if rest:
            begun[request.block_table[whole]] = rest
    return len(full) * block_size + sum(begun.values())
