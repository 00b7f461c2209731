"""The engine's log: its records against what the requests got, and against a count of our own."""

import pytest
from test_engine import MODEL, SMALL, prompts
from tiny import random_ids

from minillm.engine import Engine
from minillm.engine.log import StepLog
from minillm.engine.static_scheduler import StaticScheduler
from minillm.sampling_params import SamplingParams

SIZES = {
    "roomy": {"num_blocks": 100, "block_size": 4},
    "tight": {"num_blocks": 15, "block_size": 4, "max_batch_size": 8},
    "tight, no prefixes": {"num_blocks": 9, "block_size": 7, "max_batch_size": 8, "prefix_caching": False},
    "small budget": {"num_blocks": 200, "block_size": 1, "max_batch_size": 5, "token_budget": 7},
    "static": {"num_blocks": 40, "block_size": 4, "policy": StaticScheduler},
}


def mixed(engine, count=10, seed=4):
    """Requests of many lengths, half of which begin alike."""
    prefix = random_ids(9, seed=50)[0].tolist()
    ids = [prefix + one if i % 2 else one for i, one in enumerate(prompts(count, seed=seed, longest=30))]
    wishes = (SamplingParams(max_tokens=1 + 5 * (i % 4), ignore_eos=i % 3 > 0) for i in range(count))
    return [engine.add(one, params) for one, params in zip(ids, wishes, strict=True)]


@pytest.fixture(params=SIZES)
def logged(request):
    """A run, its requests, and its log."""
    log = StepLog()
    engine = Engine(SMALL, observer=log.append, **SIZES[request.param])
    requests = mixed(engine)
    while engine.has_work:
        engine.step()
    if request.param.startswith("tight"):
        assert sum(request.num_preemptions for request in requests) > 0, "this pool was to be too small"
    return requests, log


def parts_of(log, request):
    return [(number, part) for number, record in enumerate(log) for part in record.parts if part.request_id == request]


def test_each_token_is_computed_once_or_again_after_a_preemption(logged) -> None:
    requests, log = logged
    for request in requests:
        name, expected = request.request_id, None
        for record in log:
            admissions = [cached for admitted, cached in record.admitted if admitted == name]
            assert len(admissions) <= 1
            for cached in admissions:
                assert expected is None, "admitted while it runs"
                expected = cached
            if name in record.preempted:
                expected = None
            for part in (part for part in record.parts if part.request_id == name):
                assert part.start == expected, "a token left out, or computed twice without need"
                expected += part.num_tokens
        assert expected == len(request.token_ids) - 1, "the last token is chosen, and never computed"
        assert sum(part.samples for _, part in parts_of(log, name)) == request.num_generated
        assert sum(name in record.preempted for record in log) == request.num_preemptions


def test_every_request_arrives_is_admitted_and_ends_with_its_reason(logged) -> None:
    requests, log = logged
    arrived = [(one.request_id, one.prompt_tokens, one.max_tokens) for record in log for one in record.arrived]
    assert arrived == [(r.request_id, len(r.prompt_ids), r.params.max_tokens) for r in requests]
    ended = [one for record in log for one in record.finished]
    assert sorted(ended) == sorted((request.request_id, request.finish_reason) for request in requests)
    for request in requests:
        last = max(number for number, _ in parts_of(log, request.request_id))
        assert (request.request_id, request.finish_reason) in log[last].finished
    assert [record.num_waiting for record in log][-1] == 0


def test_times_follow_each_other_and_parts_of_a_step_are_within_it(logged) -> None:
    _, log = logged
    before = 0.0
    for record in log:
        assert before <= record.started_s
        assert min(record.schedule_s, record.forward_s, record.sample_s) > 0
        before = record.ended_s
    assert all(one.at_s <= record.started_s for record in log for one in record.arrived)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_what_the_cache_holds_is_as_counted_slot_by_slot(sizes, monkeypatch) -> None:
    """Our own count: what was really written into the tensors, when the pass is over and nobody has ended."""
    log, counted = StepLog(), []
    engine = Engine(SMALL, observer=log.append, **sizes)
    scheduler, computed = engine.scheduler, engine.scheduler.computed

    def watched(plan):
        computed(plan)
        size = scheduler.block_size
        slots = {
            (request.block_table[position // size], position % size)
            for request in scheduler.running
            for position in range(request.num_computed)
        }
        for block, slot in slots:
            assert engine.cache.keys[0, block, slot].abs().sum() > 0, "a slot without keys is counted"
        used = {block for block in range(scheduler.pool.num_blocks) if scheduler.pool.users(block)}
        counted.append((len(slots), len(used), len(scheduler.running), len(scheduler.waiting)))

    monkeypatch.setattr(scheduler, "computed", watched)
    mixed(engine)
    while engine.has_work:
        engine.step()
    assert [(r.tokens_held, r.blocks_used, r.num_running, r.num_waiting) for r in log] == counted
    assert {(r.blocks_total, r.block_size) for r in log} == {(sizes["num_blocks"], sizes["block_size"])}


def test_a_shared_block_is_counted_once() -> None:
    log = StepLog()
    engine = Engine(SMALL, num_blocks=100, block_size=4, observer=log.append)
    prefix = random_ids(40, seed=7)[0].tolist()
    for i in range(4):
        engine.add([*prefix, i], SamplingParams(max_tokens=3, ignore_eos=True))
    while engine.has_work:
        engine.step()
    assert max(record.num_running for record in log) == 4
    assert max(record.tokens_held for record in log) == 40 + 3 * 3, "the first is a step ahead, and gone by then"


def test_what_ends_between_two_steps_is_in_the_next_record() -> None:
    log = StepLog()
    engine = Engine(SMALL, num_blocks=50, block_size=4, observer=log.append)
    for name in ("a", "b"):
        engine.add([1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True), name)
    engine.step()
    engine.abort("a", "stop")
    engine.abort("a")
    assert len(log) == 1
    engine.step()
    assert (log[0].finished, log[1].finished) == ((), (("a", "stop"),))
    engine.abort("b")
    last = log[-1]
    assert (last.finished, last.parts, last.num_running, last.blocks_used) == ((("b", "abort"),), (), 0, 0)
    assert last.started_s == last.ended_s, "no step, only the end"
    assert len(log) == 3


def test_a_pass_that_fails_is_a_record_in_which_nothing_was_computed(monkeypatch) -> None:
    log = StepLog()
    engine = Engine(MODEL, num_blocks=60, block_size=4, max_batch_size=2, observer=log.append)
    for i in range(3):
        engine.add([1, i], SamplingParams(max_tokens=2, ignore_eos=True))
    with monkeypatch.context() as patch:
        patch.setattr(MODEL, "logits", lambda hidden: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError):
            engine.step()
    assert (log[0].parts, log[0].admitted) == ((), (("0", 0), ("1", 0)))
    assert log[0].finished == (("0", "error"), ("1", "error"))
    while engine.has_work:
        engine.step()
    assert log[-1].finished == (("2", "length"),)


def test_without_an_observer_nothing_is_computed_for_one(monkeypatch) -> None:
    def never(*args, **kwargs):
        raise AssertionError("a record is made for nobody")

    for name in ("StepRecord", "StepRecorder", "PartRecord", "ArrivalRecord", "tokens_held"):
        monkeypatch.setattr(f"minillm.engine.log.{name}", never)
    engine = Engine(SMALL, num_blocks=50, block_size=4)
    engine.add([1, 2, 3], SamplingParams(max_tokens=3))
    while engine.has_work:
        engine.step()


def test_the_tokens_are_the_same_with_and_without_an_observer() -> None:
    results = []
    for observer in (None, StepLog().append):
        engine = Engine(SMALL, num_blocks=15, block_size=4, observer=observer)
        requests = mixed(engine)
        while engine.has_work:
            engine.step()
        results.append([(request.token_ids, request.finish_reason) for request in requests])
    assert results[0] == results[1]
