"""The work: orders through an engine, many at a time, and their answers into the output as they come to their ends."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minillm.batch_file.orders import Order
from minillm.batch_file.output import OutputFile, record
from minillm.engine.answer import Answer
from minillm.engine.engine import Engine, Output
from minillm.errors import InputError
from minillm.server.answers import Envelope, answer, failure
from minillm.server.errors import RequestError
from minillm.server.prepare import Prepared, Served, prepare
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest

WAITING_PER_RUNNING = 1
"""Requests that wait in the engine for each that may run: with them at hand, no place stays empty for a step."""


@dataclass
class Totals:
    """What a run has done so far: lines answered, those of them that are errors, and tokens."""

    lines: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(eq=False)
class _Job:
    """An order at work: its choices' answers, and how many of them have not ended."""

    order: Order
    request: ChatCompletionRequest | CompletionRequest
    prepared: Prepared
    answers: list[Answer]
    left: int


class Work:
    """Runs orders on an engine that belongs to it alone.

    `titles` are the names of the engine's requests, by their ids: the custom_ids, with a number where a line asks for
    several choices. They are kept where `keep_titles` says so.
    """

    def __init__(
        self,
        engine: Engine,
        served: Served,
        output: OutputFile,
        *,
        fingerprint: str | None = None,
        keep_titles: bool = False,
    ) -> None:
        self.engine, self.served, self.output, self.fingerprint = engine, served, output, fingerprint
        self.totals = Totals()
        self.titles: dict[str, str] = {}
        self._keep_titles = keep_titles
        self._jobs: dict[str, tuple[_Job, Answer]] = {}  # by the requests' ids
        self._most = engine.scheduler.max_batch_size * (1 + WAITING_PER_RUNNING)

    def run(self, orders: Iterator[Order], tell: Callable[[Totals, int], None] = lambda totals, tokens: None) -> None:
        """Answer all orders. They are taken as there is room for them, a few more than can run at a time.

        tell: called between steps with what is done so far, and with the number of tokens, also of what has not ended.
        """
        while True:
            while len(self._jobs) < self._most and (order := next(orders, None)) is not None:
                self._begin(order)
                tell(self.totals, self._tokens())
            if not self._jobs:
                return
            for output in self.engine.step():
                self._take(output)
            tell(self.totals, self._tokens())

    def _take(self, output: Output) -> None:
        """A token of one request. With the last one of an order's last request, the order has ended."""
        request_id = output.request.request_id
        job, one = self._jobs[request_id]
        if one.take(output).finish_reason is not None:
            del self._jobs[request_id]
            job.left -= 1
            if not job.left:
                self._finish(job)

    def _begin(self, order: Order) -> None:
        """Hand an order's requests to the engine, all of them or none."""
        try:
            if isinstance(order.request, RequestError):
                raise order.request
            if order.request.stream:
                raise RequestError("a batch has no streams: leave stream out", param="stream")
            prepared = prepare(order.request, self.served)
            answers = self._add_all(prepared)
        except RequestError as error:
            self._refuse(order, error)
            return
        job = _Job(order, order.request, prepared, answers, left=len(answers))
        self._jobs |= {one.request.request_id: (job, one) for one in answers}
        if self._keep_titles:
            name = str(order.custom_id)
            names = [name] if len(answers) == 1 else [f"{name} {i}" for i in range(len(answers))]
            self.titles |= {one.request.request_id: title for one, title in zip(answers, names, strict=True)}

    def _add_all(self, prepared: Prepared) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for ids, params in prepared.requests:
                answers.append(Answer(self.engine, self.served.tokenizer, ids, params))
        except InputError as error:
            for one in answers:
                one.abort()
            raise RequestError(str(error), code="invalid_value") from error
        return answers

    def _finish(self, job: _Job) -> None:
        """All choices of an order have ended: its line."""
        broken = next((one.request for one in job.answers if one.request.finish_reason == "error"), None)
        if broken is not None:
            self._refuse(job.order, failure(broken.error or "the request could not go on", broken.own_fault))
            return
        generated = [one.completion() for one in job.answers]
        envelope = Envelope(job.order.id.removeprefix("batch_req_"), int(time.time()), self.fingerprint)
        body = answer(job.request, job.prepared, generated, self.served, envelope)
        self.output.append(record(job.order.id, job.order.custom_id, 200, body.model_dump()))
        self.totals.lines += 1
        self.totals.prompt_tokens += sum(map(len, job.prepared.prompts))
        self.totals.completion_tokens += sum(len(one.token_ids) for one in generated)

    def _refuse(self, order: Order, error: RequestError) -> None:
        self.output.append(record(order.id, order.custom_id, error.status, error.body()))
        self.totals.lines += 1
        self.totals.failed += 1

    def _tokens(self) -> int:
        """Tokens made so far, also of what has not ended."""
        at_work = {job for job, _ in self._jobs.values()}
        unfinished = sum(one.request.num_generated for job in at_work for one in job.answers)
        return self.totals.completion_tokens + unfinished
