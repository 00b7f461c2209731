"""`minillm bench_batch`: the requests, what is made of measurements, the check, what is refused. No time judged."""

import json
from dataclasses import asdict, replace

import jaxtyping
import pytest
import torch
from in_process import call
from tiny import random_model, save_tiny_model, tiny_config

from minillm import bench_batch
from minillm.benchmark.engine import MINILLM, TRANSFORMERS, EngineSpec
from minillm.benchmark.many import decode_curve
from minillm.benchmark.many.check import CLOSE, Checked, Difference, check, decode_alone, read_alone, tight_pool
from minillm.benchmark.many.decode_curve import WARM_UP_STEPS, decode_step_work, decode_together, mean_context
from minillm.benchmark.many.parts import Curve
from minillm.benchmark.many.plot import plot_curve
from minillm.benchmark.many.policy_alone import serve_without_a_model
from minillm.benchmark.many.serve import STATIC, Served, Serving, blocks_of_largest, serve, served
from minillm.benchmark.many.step_figures import step_figures
from minillm.benchmark.many.summary import curve_rows, percentiles, served_rows
from minillm.benchmark.many.workload import Ask, Workload
from minillm.benchmark.ours import MinillmEngine
from minillm.benchmark.remote import Loaded, RemoteEngine
from minillm.benchmark.transformers_peer import TransformersEngine
from minillm.benchmark.worker import Worker
from minillm.config import ModelConfig
from minillm.engine import Engine
from minillm.engine.log import ArrivalRecord, PartRecord, StepRecord
from minillm.errors import InputError
from minillm.machine.roofline import Machine, decode_work
from minillm.machine.shape import shape_of

MODEL = random_model(tiny_config(num_hidden_layers=1))
SMALL = Workload(6, (3, 20), (1, 8))


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1, max_position_embeddings=256))


@pytest.fixture(autouse=True)
def _quick_ceilings(monkeypatch):
    """No ceiling is measured: these tests are not about this machine."""
    monkeypatch.setattr("minillm.benchmark.many.job.read_bandwidth", lambda device: 1e9)
    monkeypatch.setattr("minillm.benchmark.ceilings.peak_matmul_flops", lambda device, dtype: 3e9)


class InThisProcess(RemoteEngine):
    """An engine that is asked as one in a process of its own is, through JSON; starting that takes seconds."""

    def __init__(self, title, asked):
        self.title, self.spec, self._worker = title, asked, Worker()
        self.loaded = Loaded(**self._ask(do="load", spec=asdict(asked)))

    @property
    def process_id(self):
        return 2**30

    def close(self):
        del self._worker

    def _ask(self, **command):
        answer = json.loads(json.dumps(self._worker.answer(json.loads(json.dumps(command)))))
        if "error" in answer:
            raise InputError(answer["error"])
        return answer


@pytest.fixture
def _in_this_process(monkeypatch):
    monkeypatch.setattr("minillm.benchmark.many.job.RemoteEngine", InThisProcess)
    monkeypatch.setattr("minillm.benchmark.many.job.machine_is_busy", lambda: None)


@pytest.fixture
def _no_shape_checks():
    """Thousands of steps without a model are a second's work; with every call's arguments checked, ten times that."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def spec(path, engine=MINILLM):
    return EngineSpec(engine, str(path), "cpu", "float32", torch.get_num_threads())


def job_of(*args):
    return bench_batch.job_of(bench_batch._parser().parse_args(args))


# The requests


def test_requests_have_lengths_from_the_whole_range_and_are_those_of_their_seed():
    asks = Workload(200, (5, 8), (1, 3)).asks(107)
    assert {len(ask.prompt_ids) for ask in asks} == {5, 6, 7, 8}
    assert {ask.new_tokens for ask in asks} == {1, 2, 3}
    assert all(0 <= token < 107 for ask in asks for token in ask.prompt_ids)
    assert asks == Workload(200, (5, 8), (1, 3)).asks(107)
    other = Workload(200, (5, 8), (1, 3), seed=1).asks(107)
    assert [len(ask.prompt_ids) for ask in other] != [len(ask.prompt_ids) for ask in asks]
    wider = Workload(200, (5, 8), (1, 3)).asks(50_000)
    assert [len(ask.prompt_ids) for ask in wider] == [len(ask.prompt_ids) for ask in asks], "lengths are the seed's"


def test_a_prefix_is_the_same_in_all_requests_and_what_follows_is_not():
    asks = Workload(5, (3, 9), (1, 1), prefix=40).asks(107)
    assert len({ask.prompt_ids[:40] for ask in asks}) == 1
    assert len({ask.prompt_ids[40:43] for ask in asks}) == 5
    assert all(43 <= len(ask.prompt_ids) <= 49 for ask in asks)


def test_a_workload_survives_a_pipe():
    workload = Workload(5, (3, 9), (1, 1), prefix=4, seed=7)
    assert Workload.from_json(json.loads(json.dumps(asdict(workload)))) == workload


# The curve


def test_the_curve_decodes_that_many_requests_behind_that_many_tokens(monkeypatch):
    seen = []
    step = Engine.step

    def spy(self):
        seen.append([(r.num_computed, r.num_to_compute) for r in self.scheduler.running])
        return step(self)

    monkeypatch.setattr(Engine, "step", spy)
    assert decode_together(MODEL, batch=3, context=20, steps=4) > 0
    assert len(seen) == WARM_UP_STEPS + 4
    assert seen == [[(20 + passed, 1)] * 3 for passed in range(WARM_UP_STEPS + 4)]
    timed = [computed + 1 for requests in seen[WARM_UP_STEPS:] for computed, _ in requests]
    assert mean_context(20, 4) == sum(timed) / len(timed)


def test_nothing_of_a_pretended_context_is_computed(monkeypatch):
    monkeypatch.setattr(decode_curve, "WARM_UP_STEPS", 0)
    tokens = []
    compute = Engine._compute
    monkeypatch.setattr(Engine, "_compute", lambda self, plan: (tokens.append(plan.num_tokens), compute(self, plan))[1])
    decode_together(MODEL, batch=2, context=30, steps=3)
    assert tokens == [2, 2, 2]


def test_a_decode_step_reads_the_weights_once_and_the_keys_of_each_request():
    shape = shape_of(tiny_config())
    work = decode_step_work(shape, 8, 100.0, pass_bytes=10_000, kv_bytes_per_token=40)
    assert work.bytes == 10_000 + 8 * 100 * 40
    assert work.flops == decode_work(shape, 8, 100).flops
    between = decode_step_work(shape, 8, 100.5, 10_000, 40).flops
    assert between == (decode_work(shape, 8, 100).flops + decode_work(shape, 8, 101).flops) / 2
    windowed = decode_step_work(replace(shape, sliding_window=64), 8, 100.0, 10_000, 40)
    assert windowed.bytes == 10_000 + 8 * 64 * 40


def test_rows_of_the_curve_are_medians_beside_the_longer_of_reading_and_computing():
    shape, curve = shape_of(tiny_config()), Curve((1, 8), 100, 6)
    loaded = Loaded(0.1, 107, 1000, 10_000, 40)
    seconds = {1: [2.0, 1.0, 5.0], 8: [4.0, 4.0, 8.0]}
    context = mean_context(100, 5)
    flops = [decode_step_work(shape, batch, context, 0, 0).flops for batch in (1, 8)]
    fast = Machine(1e6, 1e12)  # so fast at arithmetic that reading takes longer
    one, eight = curve_rows(seconds, curve, shape, loaded, fast)
    assert (one.tokens_per_s, one.least, one.most, one.tpot_s) == (2.5, 1.0, 5.0, 0.4)
    assert (eight.tokens_per_s, eight.tpot_s, eight.speed_up) == (10.0, 0.8, 4.0)
    assert one.predicted_tpot_s == pytest.approx((10_000 + context * 40) / 1e6)
    assert eight.predicted_tpot_s == pytest.approx((10_000 + 8 * context * 40) / 1e6)
    assert eight.predicted_tokens_per_s == pytest.approx(8 / eight.predicted_tpot_s)
    assert eight.share == pytest.approx(10.0 / eight.predicted_tokens_per_s)
    assert (one.bound_by, eight.bound_by) == ("memory", "memory")
    slow = curve_rows(seconds, curve, shape, loaded, Machine(1e12, 1e6))
    assert [row.predicted_tpot_s for row in slow] == pytest.approx([found / 1e6 for found in flops])
    assert {row.bound_by for row in slow} == {"compute"}
    (without_one,) = curve_rows({8: [4.0]}, Curve((8,), 100, 6), shape, loaded, fast)
    assert without_one.speed_up is None


def test_the_curve_becomes_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    rows = curve_rows(
        {1: [2.0], 4: [4.0]}, Curve((1, 4), 9, 6), shape_of(tiny_config()), Loaded(0.1, 107, 9, 9, 9), Machine(1e3, 1e6)
    )
    plot_curve(rows, "a tiny model", tmp_path / "curve.svg")
    picture = (tmp_path / "curve.svg").read_text(encoding="utf-8")
    assert "<svg" in picture
    plot_curve(rows, "a tiny model", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


# Steps


def record(parts, *, used, held, running, preempted=(), admitted=(), arrived=(), seconds=(0.0, 0.0, 0.0)):
    lists = map(tuple, (parts, admitted, preempted, ()))
    return StepRecord(0.0, *seconds, *lists, running, 0, used, 100, held, 4, tuple(arrived))


def test_figures_of_hand_made_steps():
    """Request a: 10 tokens of prompt, read in two chunks; one is decoded; its blocks are taken, and it is read again.

    Of its 11 tokens, 8 are found in the prefix cache the second time, and 3 are computed again.
    """
    came = [ArrivalRecord("a", 0.0, 10, 9), ArrivalRecord("b", 0.0, 2, 9)]
    records = [
        record([PartRecord("a", 0, 6, False)], used=2, held=6, running=1, seconds=(1.0, 6.0, 0.0), arrived=came),
        record([PartRecord("a", 6, 4, True), PartRecord("b", 0, 2, True)], used=4, held=12, running=2),
        record([PartRecord("a", 10, 1, True)], used=4, held=13, running=2, seconds=(0.0, 1.0, 0.5)),
        record([PartRecord("b", 2, 1, True)], used=0, held=0, running=0, preempted=["a"]),
        record([PartRecord("a", 8, 4, True)], used=3, held=12, running=1, admitted=[("a", 8)]),
    ]
    figures = step_figures(records, [8.0, 0.5, 1.5, 0.0, 0.0], context=50)
    assert figures.steps == 5
    assert figures.computed_tokens == 6 + 6 + 1 + 1 + 4
    assert figures.prompt_tokens == 6 + 4 + 2 + 2, "positions 8 and 9, read again, are the prompt's"
    assert figures.recomputed_tokens == 3, "8, 9 and 10; position 11 is new"
    assert (figures.preemptions, figures.cached_tokens, figures.most_blocks) == (1, 8, 4)
    assert figures.mean_running == (1 + 2 + 1 + 1 + 1) / 5
    assert figures.kv_waste == pytest.approx((2 / 8 + 4 / 16 + 3 / 16 + 0 / 12) / 4), "a step without blocks has none"
    whole = (1 - 6 / 50) + (1 - 12 / 100) + (1 - 13 / 100) + (1 - 12 / 50)
    assert figures.waste_of_whole_contexts == pytest.approx(whole / 4)
    assert (figures.schedule_s, figures.forward_s, figures.sample_s, figures.other_s) == (1.0, 7.0, 0.5, 1.5)
    assert figures.bookkeeping_share == pytest.approx((1.0 + 1.5) / 10)


def test_percentiles_lie_between_neighbours():
    assert percentiles([1.0, 3.0]) == {50: 2.0, 90: pytest.approx(2.8), 99: pytest.approx(2.98)}
    assert percentiles([5.0]) == {50: 5.0, 90: 5.0, 99: 5.0}
    assert percentiles([]) == {}


def test_rows_of_a_set_count_what_was_asked_for():
    ours = [served(2.0, [[0.5, 1.0, 1.5], [2.0]]), served(4.0, [[1.0, 2.0, 3.0], [4.0]])]
    theirs = [served(8.0, [[1.0, 1.5, 2.0], [8.0]])]
    mine, its = served_rows({"ours": ours, "theirs": theirs})
    assert (mine.tokens_per_s, mine.least, mine.most, mine.total_s, mine.ratio) == (1.5, 1.0, 2.0, 3.0, None)
    assert (its.tokens_per_s, its.ratio) == (0.5, 3.0)
    assert mine.ttft_s[50] == 1.5, "of 0.5, 2, 1 and 4"
    assert mine.tpot_s[50] == 0.75, "of 0.5 and 1; a request of one token has no time per output token"


# Serving


def test_serving_times_every_token_of_every_request():
    asks = SMALL.asks(107)
    result = serve(MODEL, asks, Serving(max_batch_size=3))
    assert result.output_tokens == sum(ask.new_tokens for ask in asks)
    assert len(result.ttft_s) == len(result.tpot_s) == 6
    assert all(0 < ttft <= result.total_s for ttft in result.ttft_s)
    assert [tpot is None for tpot in result.tpot_s] == [ask.new_tokens == 1 for ask in asks]
    assert result.steps is not None
    assert result.steps.prompt_tokens == sum(len(ask.prompt_ids) for ask in asks)
    assert 0 < result.steps.bookkeeping_share < 1


def test_the_schedule_alone_is_the_engine_s():
    """What needs no model is the same with one: counts, waste, preemptions."""
    asks, serving = SMALL.asks(107), Serving(max_batch_size=4, num_blocks=9, block_size=4)
    for how in (serving, replace(serving, policy=STATIC)):
        alone, real = serve_without_a_model(MODEL.config, asks, how).steps, serve(MODEL, asks, how).steps
        assert alone is not None
        assert real is not None
        untimed = dict.fromkeys(("schedule_s", "forward_s", "sample_s", "other_s"), 0.0)
        assert replace(alone, **untimed) == replace(real, **untimed)


def test_room_for_the_largest_requests_and_a_pool_too_small_for_them():
    asks = [Ask((1,) * prompt, new) for prompt, new in ((10, 7), (4, 1), (20, 13), (1, 1))]
    serving = Serving(max_batch_size=2, block_size=4)
    assert blocks_of_largest(asks, serving) == 8 + 4, "32 tokens are held of 33, and 16 of 17"
    assert blocks_of_largest(asks, replace(serving, policy=STATIC)) == 2 * 8
    assert tight_pool(asks, serving) == 8, "the largest must fit"
    assert tight_pool(asks * 2, replace(serving, max_batch_size=8)) == (2 * (8 + 4 + 1 + 1)) // 3


@pytest.mark.usefixtures("_no_shape_checks")
def test_prompts_that_begin_alike_are_computed_once(monkeypatch):
    """600 tokens in common over 32 requests: nine tenths of the work, and more, fall away."""
    workload = job_of("--prefix").prefix
    assert (workload.count, workload.prefix) == (32, 600)
    config = ModelConfig(**{**asdict(MODEL.config), "max_position_embeddings": 1024})
    asks = workload.asks(config.vocab_size)
    with_it, without = (
        serve_without_a_model(config, asks, Serving(prefix_caching=caching)).steps for caching in (True, False)
    )
    assert with_it is not None
    assert without is not None
    assert without.prompt_tokens == sum(len(ask.prompt_ids) for ask in asks)
    assert with_it.prompt_tokens + with_it.cached_tokens == without.prompt_tokens
    assert with_it.prompt_tokens <= 0.1 * without.prompt_tokens


@pytest.mark.usefixtures("_no_shape_checks")
def test_a_paged_cache_wastes_less_than_4_percent_of_the_mixed_set_where_static_reservation_wastes_most():
    config = ModelConfig(**{**asdict(MODEL.config), "max_position_embeddings": 8192})
    asks = job_of("--mixed").mixed.asks(config.vocab_size)
    tokens = len(asks), sum(len(ask.prompt_ids) for ask in asks), sum(ask.new_tokens for ask in asks)
    assert "The {:,} mixed requests are {:,} tokens in and {:,} out".format(*tokens) in bench_batch._EPILOG
    paged, static = (
        serve_without_a_model(config, asks, serving).steps for serving in (Serving(), Serving(policy=STATIC))
    )
    assert paged is not None
    assert static is not None
    assert paged.computed_tokens == static.computed_tokens
    assert paged.kv_waste < 0.04
    assert static.kv_waste > 0.5, "every place is as long as the longest, and stays after its request has ended"
    assert paged.waste_of_whole_contexts > 0.9


# The check


def test_the_check_says_yes_of_an_engine_that_is_right_and_counts_what_it_compared():
    asks, serving = SMALL.asks(107), Serving(max_batch_size=4, num_blocks=9, block_size=4)
    for in_one_pass in (False, True):
        found = check(MODEL, asks, serving, in_one_pass=in_one_pass)
        assert found.wrong == []
        assert found.tokens == sum(ask.new_tokens for ask in asks)
        assert found.preemptions > 0
        assert found.recomputed_tokens > 0


def test_the_check_finds_a_token_that_is_not_the_request_s_own(monkeypatch):
    """One logit of one step is turned up: that token is wrong, and those after it are judged by themselves."""
    compute = Engine._compute
    steps = []

    def spoiled(self, plan):
        logits = compute(self, plan)
        steps.append(plan)
        return logits + 100 * torch.eye(107)[3] if len(steps) == 7 else logits

    monkeypatch.setattr(Engine, "_compute", spoiled)
    found = check(MODEL, SMALL.asks(107), Serving(max_batch_size=4, num_blocks=9, block_size=4))
    assert 0 < len(found.wrong) <= 4, "of each of the requests that ran, this token and no other"
    assert len({difference.request for difference in found.wrong}) == len(found.wrong)
    assert all(difference.gap > CLOSE for difference in found.wrong)


def test_the_check_refuses_a_pool_that_preempts_nothing():
    with pytest.raises(InputError, match="were enough for all"):
        check(MODEL, SMALL.asks(107), Serving(num_blocks=90, block_size=4))


def test_only_closeness_excuses_a_difference():
    found = Checked(1, 9, 3, 1, 1, 0, [Difference(0, 1, CLOSE / 2), Difference(0, 2, CLOSE)])
    assert found.wrong == [Difference(0, 2, CLOSE)]
    assert Checked.from_json(json.loads(json.dumps(asdict(found)))) == found


def test_a_request_alone_is_read_in_one_pass_or_token_by_token_with_the_same_logits():
    prompt, answer = [3, 1, 4, 1, 5], [9, 2, 6, 5]
    read, decoded = (torch.stack(list(alone(MODEL, prompt, answer))) for alone in (read_alone, decode_alone))
    assert read.shape == (4, 107)
    torch.testing.assert_close(read, decoded, atol=1e-4, rtol=1e-4)


# Engines in their processes


def test_transformers_serves_batches_in_order_and_counts_only_what_was_asked_for(tiny_dir, monkeypatch):
    engine = TransformersEngine(spec(tiny_dir, TRANSFORMERS))
    batches = []
    generate = engine.model.generate

    def spy(ids, **options):
        batches.append((ids, options["attention_mask"], options["max_new_tokens"]))
        return generate(ids, **options)

    monkeypatch.setattr(engine.model, "generate", spy)
    asks = Workload(5, (3, 9), (1, 6)).asks(107)
    result = engine.serve(asks, Serving(max_batch_size=2))
    assert [len(ids) for ids, _, _ in batches] == [2, 2, 1]
    assert [new for _, _, new in batches] == [max(ask.new_tokens for ask in asks[i : i + 2]) for i in (0, 2, 4)]
    for i, (ids, mask, _) in enumerate(batches):
        for row, ask in enumerate(asks[2 * i : 2 * i + 2]):
            assert ids[row][mask[row].bool()].tolist() == list(ask.prompt_ids)
            assert mask[row].tolist() == sorted(mask[row].tolist()), "padding stands on the left"
    assert result.output_tokens == sum(ask.new_tokens for ask in asks)
    assert result.ttft_s == sorted(result.ttft_s), "a batch waits for the one before"


def test_padded_batches_of_transformers_choose_what_our_engine_chooses(tiny_dir):
    """They do the same work on the same requests: else their speeds would not compare."""
    theirs, ours = TransformersEngine(spec(tiny_dir, TRANSFORMERS)), MinillmEngine(spec(tiny_dir))
    asks = [Ask(ask.prompt_ids, 6) for ask in Workload(3, (3, 9), (1, 1)).asks(107)]
    found = []
    generate = theirs.model.generate
    theirs.model.generate = lambda *args, **options: (found.append(generate(*args, **options)), found[-1])[1]
    theirs.serve(asks, Serving(max_batch_size=3))
    answers = [row[-6:].tolist() for row in found[0]]
    for ask, answer in zip(asks, answers, strict=True):
        logits = torch.stack(list(decode_alone(ours.model, ask.prompt_ids, answer)))
        logits[:, theirs.model.generation_config.eos_token_id] = -torch.inf  # `min_new_tokens` forbids it
        assert logits.argmax(dim=-1).tolist() == answer


def test_a_worker_serves_and_checks(tiny_dir):
    worker = Worker()
    worker.answer({"do": "load", "spec": asdict(spec(tiny_dir))})
    command = {"workload": json.loads(json.dumps(asdict(SMALL))), "serving": asdict(Serving(max_batch_size=3))}
    answer = json.loads(json.dumps(worker.answer({"do": "serve", **command})))
    result = Served.from_json(answer)
    assert result.steps is not None
    assert result.output_tokens == sum(ask.new_tokens for ask in SMALL.asks(320))
    assert worker.answer({"do": "decode_together", "batch": 2, "context": 9, "steps": 2})["seconds"] > 0
    command["serving"] |= {"num_blocks": 8, "block_size": 4}
    checked = Checked.from_json(json.loads(json.dumps(worker.answer({"do": "check", **command}))))
    assert checked.wrong == []
    command["serving"] |= {"num_blocks": 1}
    assert "needs" in worker.answer({"do": "serve", **command})["error"]


# The command


def test_without_a_part_it_is_the_curve_and_a_set_does_without_it():
    assert job_of().curve == Curve((1, 2, 4, 8, 16, 32, 64), 256, 32)
    assert job_of("--mixed").curve is None
    assert job_of("--mixed", "--curve").curve is not None
    assert job_of("--mixed", "--batch", "1", "2").curve == Curve((1, 2), 256, 32)
    assert job_of("--mixed").mixed == Workload(64, (5, 800), (1, 200))
    assert job_of("--mixed", "9", "--prompts", "2", "3", "--outputs", "4", "5", "--seed", "6").mixed == Workload(
        9, (2, 3), (4, 5), seed=6
    )
    assert job_of("--check", "--dtype", "float32").check == Workload(64, (5, 800), (1, 200))


WRONG = {
    "a dtype": (["--dtype", "int3"], "unknown dtype"),
    "a quantization": (["--quantize", "int3"], "invalid choice"),
    "an engine": (["--mixed", "--compare", "vllm"], "not 'vllm'"),
    "an engine that is not for this": (["--mixed", "--compare", "llama.cpp"], "not 'llama.cpp'"),
    "a comparison of nothing": (["--compare", "transformers"], "add --mixed"),
    "a quantized comparison": (["--mixed", "--compare", "transformers", "--quantize", "int8"], "leave out --quantize"),
    "a batch of none": (["--batch", "0"], "--batch must be at least 1"),
    "the same twice": (["--batch", "2", "2"], "--batch names 2 twice"),
    "no context": (["--context", "0"], "--context must be at least 1"),
    "one new token": (["--new-tokens", "1"], "--new-tokens must be at least 2"),
    "no runs": (["--runs", "0"], "--runs must be from 1"),
    "no runs of a set": (["--mixed", "--runs", "0"], "--runs must be from 1"),
    "no requests": (["--mixed", "0"], "at least 1"),
    "a range upside down": (["--mixed", "--prompts", "9", "5"], "not from 9 to 5"),
    "an empty answer": (["--mixed", "--outputs", "0", "5"], "not from 0 to 5"),
    "half a range": (["--mixed", "--prompts", "9"], "expected 2 arguments"),
    "a negative seed": (["--mixed", "--seed", "-1"], "the seed"),
    "no places": (["--mixed", "--max-batch-size", "0"], "--max-batch-size must be from 1 to 512, not 0"),
    "more places than tokens in a step": (["--mixed", "--max-batch-size", "513"], "to 512, not 513"),
    "no blocks": (["--mixed", "--blocks", "0"], "--blocks must be from 1"),
    "no prefix": (["--prefix", "0"], "--prefix must be from 1"),
    "a picture of a kind": (["--plot", "curve.gif"], "not 'curve.gif'"),
    "a picture nowhere": (["--plot", "/nowhere/curve.svg"], "there is no directory"),
    "a check in few bits": (["--check", "--dtype", "bfloat16"], "add --dtype float32"),
    "a check of quantized weights": (["--check", "--quantize", "int8", "--dtype", "float32"], "not in int8"),
    "no model and nothing to schedule": (["--schedule-only"], "add --mixed or --prefix"),
    "no model and a curve": (["--schedule-only", "--mixed", "--curve"], "leave out --curve"),
    "two models": (["--random", "llama-3.2-1b"], "two models"),
    "a context that does not fit": (["--batch", "1", "--context", "250", "--new-tokens", "5"], "256"),
    "requests that do not fit": (["--mixed"], "up to 1,000 tokens are asked for"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_flags_are_refused_in_one_sentence_before_anything_is_measured(name, tiny_dir, capsys, monkeypatch):
    monkeypatch.setattr("minillm.benchmark.many.job.machine_is_busy", lambda: pytest.fail("it began to measure"))
    args, word = WRONG[name]
    code, out, err = call(capsys, "bench_batch", "--model", tiny_dir, *args)
    assert (code, out) == (2, "")
    assert word in err
    assert err.count("\n") == 1


def test_a_picture_needs_matplotlib_and_says_how_to_get_it(tiny_dir, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = call(capsys, "bench_batch", "--model", tiny_dir, "--plot", "curve.svg")
    assert code == 2
    assert "minillm[book]" in err


QUICK = ("--dtype", "float32", "--runs", "1", "--prompts", "3", "9", "--outputs", "12", "18")


@pytest.mark.usefixtures("_in_this_process", "_no_shape_checks")
def test_the_whole_of_it_as_json(tiny_dir, tmp_path, capsys):
    parts = ("--batch", "1", "2", "--context", "9", "--new-tokens", "3", "--plot", str(tmp_path / "curve.svg"))
    sets = ("--mixed", "5", "--compare", "transformers", "--prefix", "20", "--check", "9", "--blocks", "4")
    code, out, err = call(capsys, "bench_batch", "--model", tiny_dir, *QUICK, *parts, *sets, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert set(result) == {
        "command", "time", "machine", "versions", "model", "trusted", "cautions",
        "mode", "engine", "ceilings", "check", "curve", "prefix", "mixed",
    }  # fmt: skip
    assert result["command"].startswith("minillm bench_batch --model")
    assert [row["batch"] for row in result["curve"]["rows"]] == [1, 2]
    assert all(len(row["seconds"]) == 1 for row in result["curve"]["rows"])
    assert result["curve"]["alone_tokens_per_s"] > 0
    assert (tmp_path / "curve.svg").exists()
    assert result["check"]["equal"] is True
    assert [row["engine"] for row in result["mixed"]["summary"]] == ["minillm", "minillm static", "transformers static"]
    assert result["mixed"]["agreement"][TRANSFORMERS]["verdict"] == "yes"
    for name, runs in result["mixed"]["runs"].items():
        assert len(runs) == 1
        assert len(runs[0]["ttft_s"]) == 5
        assert (runs[0]["steps"] is None) == (name == "transformers static")
    computed = {name: runs[0]["steps"]["prompt_tokens"] for name, runs in result["prefix"]["runs"].items()}
    assert computed["found again"] < computed["not looked for"]
    assert "tokens equal: yes" in err, "beside JSON the tables go to stderr"


@pytest.mark.usefixtures("_in_this_process")
def test_the_tables_go_to_stdout_and_fit_80_columns(tiny_dir, capsys):
    parts = ("--batch", "1", "2", "--context", "9", "--new-tokens", "3", "--prefix", "40", "--mixed", "5")
    code, out, _ = call(capsys, "bench_batch", "--model", tiny_dir, *QUICK, *parts)
    assert code == 0
    assert max(map(len, out.split("\n"))) <= 80
    for word in ("GB/s", "at most", "x 1", "TTFT 50", "TPOT 99", "waste", "again", "the prefix cache saves"):
        assert word in out, word


def test_the_schedule_alone_needs_no_engine(tiny_dir, capsys, monkeypatch):
    monkeypatch.setattr("minillm.benchmark.many.job.RemoteEngine", lambda *_: pytest.fail("an engine was loaded"))
    args = ("--schedule-only", "--mixed", "9", "--prefix", "40", "--json", *QUICK)
    code, out, _ = call(capsys, "bench_batch", "--model", tiny_dir, *args)
    assert code == 0
    result = json.loads(out)
    assert set(result["mixed"]) == {"minillm", "minillm static"}
    assert result["prefix"]["found again"]["prompt_tokens"] < result["prefix"]["not looked for"]["prompt_tokens"]


def test_the_schedule_of_a_shape_writes_no_weights(capsys, monkeypatch):
    monkeypatch.setattr("minillm.benchmark.subject.write_random_model", lambda *_: pytest.fail("they were written"))
    args = ("--random", "llama-3.2-1b", "--schedule-only", "--mixed", "5", "--json", *QUICK)
    code, out, _ = call(capsys, "bench_batch", *args)
    assert code == 0
    assert json.loads(out)["mixed"]["minillm"]["steps"] > 0


@pytest.mark.usefixtures("_in_this_process")
def test_a_check_that_fails_ends_with_exit_code_1(tiny_dir, capsys, monkeypatch):
    found = Checked(2, 9, 0, 1, 5, 0, [Difference(1, 4, 0.5)])
    monkeypatch.setattr("minillm.benchmark.remote.RemoteEngine.check", lambda *_: found)
    code, out, _ = call(capsys, "bench_batch", "--model", tiny_dir, *QUICK, "--check", "9", "--blocks", "4")
    assert code == 1
    assert "WRONG: request 1, token 4" in out
    assert "tokens equal: no" in out
