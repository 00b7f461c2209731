"""Logs of runs without a model: the real scheduler and the real recorder, and a clock that is moved by hand."""

import random

from minillm.engine.log import StepLog, StepRecorder
from minillm.engine.request import Request
from minillm.engine.scheduler import Scheduler
from minillm.sampling_params import SamplingParams


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def simulated_log(
    lengths, *, policy=Scheduler, seed=0, shared=0, per_step_s=0.012, per_token_s=0.0004, arrivals_s=0.0, **sizes
) -> StepLog:
    """The log of requests of `lengths`, (prompt, completion) each, which begin with `shared` tokens in common.

    A pass takes per_step_s, and per_token_s for each token. A new request comes every arrivals_s seconds.
    """
    chance, log, clock = random.Random(seed), StepLog(), Clock()
    scheduler = policy(**{"num_blocks": 400, "block_size": 16, "max_batch_size": 16, "token_budget": 256, **sizes})
    recorder = StepRecorder(log.append, scheduler, clock)
    to_come = []
    for number, (prompt, completion) in enumerate(lengths):
        own = [chance.randint(8, 100) for _ in range(max(0, prompt - shared))]
        ids = ([i % 7 for i in range(shared)] + own)[:prompt]
        params = SamplingParams(max_tokens=completion)
        to_come.append(Request(str(number), tuple(ids), params, len(ids) + completion))
    came = 0
    while came < len(to_come) or scheduler.has_work:
        while came < len(to_come) and (came * arrivals_s <= clock.now or not scheduler.has_work):
            scheduler.add(to_come[came])
            recorder.arrived(to_come[came])
            came += 1
        recorder.begin()
        plan = scheduler.schedule()
        clock.now += 0.0003
        recorder.scheduled(plan)
        clock.now += (per_step_s + per_token_s * plan.num_tokens) * chance.uniform(0.95, 1.1)
        recorder.forwarded()
        scheduler.computed(plan)
        recorder.computed()
        for part in plan.scheduled:
            request = part.request
            if not part.samples:
                continue
            request.token_ids.append(chance.randint(8, 100))
            if len(request.token_ids) == request.max_length:
                reason = "length" if request.arrival % 3 else "stop"
                recorder.finished(request, reason)
                scheduler.finish(request)
        clock.now += 0.0006
        recorder.end()
        clock.now += 0.0002
    return log


def mixed_lengths(count, seed=0, longest_prompt=800, longest=200):
    """(prompt, completion) of requests, most of them short, some long."""
    chance = random.Random(seed)
    return [
        (5 + int((longest_prompt - 5) * chance.random() ** 2), 1 + int((longest - 1) * chance.random() ** 1.5))
        for _ in range(count)
    ]
