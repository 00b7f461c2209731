"""`minillm bench`: what it measures and in which order, what it makes of it, and what it refuses. No time is judged."""

import json
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from in_process import call
from tiny import random_ids, random_model, save_tiny_model, tiny_config

from minillm import bench
from minillm.benchmark import watch
from minillm.benchmark.agreement import Agreement, count_equal
from minillm.benchmark.ceilings import READS_BEFORE, Ceilings
from minillm.benchmark.engine import LLAMA_CPP, MINILLM, TRANSFORMERS, EngineSpec
from minillm.benchmark.ours import MinillmEngine
from minillm.benchmark.peers import Lineup
from minillm.benchmark.plan import Mode, Plan, modes
from minillm.benchmark.random_model import config_of, random_config, write_random_model
from minillm.benchmark.remote import Loaded, RemoteEngine, Top, why_ended
from minillm.benchmark.report import Report
from minillm.benchmark.session import Memory, Result, one_per_file
from minillm.benchmark.summary import Row, summarize
from minillm.benchmark.transformers_peer import TransformersEngine
from minillm.benchmark.turns import Run, take_turns
from minillm.benchmark.watch import Look, Ticks, Watch, cautions, share_of_others
from minillm.benchmark.worker import Worker
from minillm.errors import InputError
from minillm.loading import open_checkpoint
from minillm.loading.loader import load_model
from minillm.machine.roofline import Machine
from minillm.machine.shape import shape_of
from minillm.machine.well_known import BY_NAME

QUICK = ("--dtype", "float32", "--prompt-tokens", "5", "--context", "7", "--batch", "1", "2", "--new-tokens", "3")


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=256))


@pytest.fixture(autouse=True)
def _quick_ceilings(monkeypatch):
    """No ceiling is measured: these tests are not about this machine."""
    monkeypatch.setattr("minillm.benchmark.job.bandwidth_reader", lambda device: read)
    monkeypatch.setattr("minillm.benchmark.ceilings.matmul_flops_by_size", lambda device, dtype: {256: 3e9})
    monkeypatch.setattr("minillm.benchmark.ceilings.matmul_timer", lambda device, dtype, size: lambda repeats: 4e9)


def read(repeats):
    return 1e9 if repeats == READS_BEFORE else 2e9


def spec(path, engine=MINILLM, dtype="float32"):
    return EngineSpec(engine, str(path), "cpu", dtype, torch.get_num_threads())


def plan_of(*args):
    return bench.plan_of(bench._parser().parse_args(args))


# What is measured


def test_the_default_is_the_whole_grid_and_flags_replace_parts_of_it():
    plan = plan_of()
    assert (plan.prompts, plan.contexts, plan.batches) == ((32, 512, 2048), (64, 512, 2048), (1, 8))
    assert plan.lengths == (32, 64, 512, 2048)
    assert plan_of("--batch", "4", "--runs", "7") == replace(plan, batches=(4,), runs=7)
    assert plan_of("--quick", "--batch", "4").batches == (4,)
    assert max(plan_of("--quick").lengths) < 512


def test_one_request_is_its_prompt_and_one_pass_less_than_its_tokens():
    plan = plan_of("--request", "512", "128")
    assert (plan.prompts, plan.contexts, plan.batches, plan.passes) == ((512,), (512,), (1,), 127)


def test_modes_are_every_dtype_with_every_quantization_and_none_twice():
    assert modes(["float32", "float32"], ["none", "int8"]) == (Mode("float32"), Mode("float32", "int8"))
    assert [mode.name for mode in modes(["bfloat16"], ["none", "int4"])] == ["bfloat16", "int4 (bfloat16)"]
    assert Mode("bfloat16").gguf_types == ("BF16",)
    assert Mode("bfloat16", "int4").gguf_types == ("Q4_1", "Q4_0")


WRONG = {
    "a dtype": (["--dtype", "int3"], "unknown dtype"),
    "a device": (["--device", "tpu"], "unknown device"),
    "a cache": (["--kv-dtype", "int3"], "invalid choice"),
    "a quantization": (["--quantize", "int3"], "invalid choice"),
    "an engine": (["--compare", "transformers,vllm"], "no engine 'vllm'"),
    "no prompt": (["--prompt-tokens", "0"], "--prompt-tokens must be at least 1"),
    "a huge context": (["--context", "99999999999"], "--context must be at least 1 and below"),
    "a batch of none": (["--batch", "1", "0"], "--batch must be at least 1"),
    "the same twice": (["--batch", "3", "8", "3"], "--batch names 3 twice"),
    "no runs": (["--runs", "0"], "--runs must be at least 1"),
    "one new token": (["--new-tokens", "1"], "--new-tokens must be at least 2"),
    "words": (["--runs", "many"], "invalid int value"),
    "a request and a batch": (["--request", "5", "5", "--batch", "2"], "leave out --batch"),
    "a request of one token": (["--request", "5", "1"], "--new-tokens must be at least 2"),
    "two models": (["--random", "llama-3.2-1b"], "two models"),
    "more tokens than the context": (["--prompt-tokens", "250", "--context", "9", "--new-tokens", "7"], "of 256"),
    "a directory as a quantized file": (["--quick", "--quantize", "file"], "a directory"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_flags_are_refused_in_one_sentence_before_anything_is_measured(name, tiny_dir, capsys, monkeypatch):
    monkeypatch.setattr("minillm.benchmark.job.machine_is_busy", lambda: pytest.fail("it began to measure"))
    args, word = WRONG[name]
    code, out, err = call(capsys, "bench", "--model", tiny_dir, *args)
    assert (code, out) == (2, "")
    assert word in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--random", "llama-9"], "knows no shape 'llama-9'"),
        (["--random", "qwen3-0.6b"], "qwen3-0.6b is no Llama"),
        (["--random", "llama-3.2-1b", "--quantize", "file"], ".gguf file"),
        (["--random", "llama-3.2-1b", "--context", "131072"], "context of 131,072"),
    ],
)
def test_a_random_model_that_cannot_be_is_refused_before_it_is_written(args, word, capsys, monkeypatch):
    monkeypatch.setattr("minillm.benchmark.subject.write_random_model", lambda *_: pytest.fail("it was written"))
    code, out, err = call(capsys, "bench", *args)
    assert (code, out) == (2, "")
    assert word in err


def test_a_peer_that_is_not_installed_is_named_with_the_way_to_get_it(tiny_dir, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for peer, extra in ((LLAMA_CPP, "minillm[bench]"), (TRANSFORMERS, "minillm[test]")):
        code, _, err = call(capsys, "bench", "--model", tiny_dir, "--compare", peer)
        assert code == 2
        assert extra in err


def test_transformers_needs_a_directory(tmp_path, capsys):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    code, _, err = call(capsys, "bench", "--model", str(file), "--compare", TRANSFORMERS)
    assert code == 2
    assert "needs a directory with safetensors" in err


# Turns


class Recorded:
    """An engine that notes what it is asked, and takes as many seconds as it is told."""

    def __init__(self, name, calls, seconds=1.0):
        self.name, self.calls, self.seconds = name, calls, seconds

    def prefill(self, tokens, room, seed):
        self.calls.append((self.name, "prefill", tokens, room, seed))
        return self.seconds

    def decode(self, batch, passes):
        self.calls.append((self.name, "decode", batch, passes))
        return self.seconds


def no_limit(what):
    return 1.0


def test_engines_take_turns_at_each_length_and_the_first_round_is_not_counted():
    calls, rounds = [], []
    plan = Plan((5,), (7,), (1, 2), new_tokens=10, runs=2)
    runs = take_turns({"a": Recorded("a", calls), "b": Recorded("b", calls)}, plan, no_limit, rounds.append)
    a_round = [(name, "prefill") for name in "ab"] + [
        (name, *rest) for name in "ab" for rest in [("prefill",), ("decode",), ("decode",)]
    ]
    assert [seen[:2] for seen in calls] == 3 * a_round
    assert rounds == [0, 1, 2]
    assert {run.round for run in runs} == {1, 2}
    assert [(run.engine, run.what, run.tokens, run.batch, run.passes) for run in runs if run.round == 1] == [
        ("a", "prefill", 5, 1, 1),
        ("b", "prefill", 5, 1, 1),
        ("a", "decode", 7, 1, 9),
        ("a", "decode", 7, 2, 9),
        ("b", "decode", 7, 1, 9),
        ("b", "decode", 7, 2, 9),
    ], "a length that is only decoded behind is no prefill measurement"


def test_engines_get_the_same_ids_in_a_round_and_others_in_the_next():
    calls = []
    engines = {"a": Recorded("a", calls), "b": Recorded("b", calls)}
    take_turns(engines, Plan((5,), (5,), (1,), 4, 3), no_limit, lambda _: None)
    seeds = {name: [seen[4] for seen in calls if seen[:2] == (name, "prefill")] for name in "ab"}
    assert seeds["a"] == seeds["b"]
    assert len(set(seeds["a"])) == 4
    assert {seen[3] for seen in calls if seen[1] == "prefill"} == {9}, "room for the prompt and the new tokens"


def test_the_limit_of_a_run_is_read_right_before_and_after_it_and_the_better_one_counts():
    calls, readings = [], iter([7.0, 5.0, 3.0, 4.0, 1.0, 2.0, *range(100, 200)])

    def read_limit(what):
        calls.append(("read", what))
        return float(next(readings))

    # The first length is only decoded behind: nothing is read beside its prefill. One round that is not counted.
    plan = Plan((6,), (5,), (1, 2), new_tokens=4, runs=1)
    runs = take_turns({"a": Recorded("a", calls)}, plan, read_limit, lambda _: None)
    decode = [("read", "decode"), ("a", "decode"), ("read", "decode")]
    prefill = [("read", "prefill"), ("a", "prefill"), ("read", "prefill")]
    assert [seen[:2] for seen in calls] == 2 * [("a", "prefill"), *decode, *decode, *prefill]
    assert [run.limit for run in runs] == [101.0, 103.0, 105.0]
    readings = iter([7.0, 5.0, 3.0, 4.0, 1.0, 2.0] * 2)
    assert [run.limit for run in take_turns({"a": Recorded("a", calls)}, plan, read_limit, print)] == [7.0, 4.0, 2.0]


@pytest.mark.parametrize(("what", "limit"), [("decode", 2e9), ("prefill", 4e9)])
def test_what_limits_a_pass_is_the_memory_or_the_products(what, limit):
    assert Ceilings("float32", torch.device("cpu"), read)(what) == limit


def test_a_rate_counts_prompt_tokens_or_the_new_tokens_of_all_sequences():
    assert Run(1, "a", "prefill", 12, 1, 1, 3.0, 1.0).tokens_per_s == 4.0
    assert Run(1, "a", "decode", 12, 8, 5, 2.0, 1.0).tokens_per_s == 20.0


# What is made of it


def test_rows_are_medians_with_spread_ratio_and_share_of_the_ceiling():
    shape = shape_of(tiny_config())
    loaded = {MINILLM: Loaded(0.1, 107, 1000, 800, 10), "peer": Loaded(0.1, 107, 1000, 1000, 20)}
    ours = ((1, 4.0, 1e4), (2, 2.0, 1e4), (3, 1.0, 4e4))
    runs = [Run(r, MINILLM, "decode", 6, 2, 4, s, limit) for r, s, limit in ours]
    runs += [Run(r, "peer", "decode", 6, 2, 4, s, 1e4) for r, s in ((1, 8.0), (2, 8.0), (3, 1.0))]
    ours, theirs = summarize(runs, loaded, shape, Machine(1.0, 1e9))
    assert (ours.median, ours.least, ours.most, ours.ratio) == (4.0, 2.0, 8.0, None)
    assert (theirs.median, theirs.ratio) == (1.0, 4.0)
    # Four passes behind 6 tokens see 7, 8, 9 and 10 of them, twice: 17 each on average; 0.5 s a pass.
    # Against the machine of the same moment, the run that was fastest reached as much as the slowest: 970 / 1 / 1e4.
    assert ours.utilization == pytest.approx((800 + 17 * 10) / 1.0 / 1e4)
    assert theirs.utilization == pytest.approx((1000 + 17 * 20) / 2.0 / 1e4)


def test_mfu_leaves_the_head_out():
    shape = shape_of(tiny_config())
    runs = [Run(1, MINILLM, "prefill", 6, 1, 1, 2.0, 1e5)]
    (row,) = summarize(runs, {MINILLM: Loaded(0.1, 107, 1, 1, 1)}, shape, Machine(1.0, 1e6))
    wider = shape_of(tiny_config(vocab_size=500))
    (other,) = summarize(runs, {MINILLM: Loaded(0.1, 107, 1, 1, 1)}, wider, Machine(1.0, 1e6))
    assert row.utilization == other.utilization
    layers = sum(slot.numel() for name, slot in random_model().checkpoint_slots().items() if "layers" in name)
    norm, attention = 48, 4 * 6 * 10 * 3 * (6 * 7 // 2)
    assert row.utilization == pytest.approx((2 * 6 * (layers + norm) + attention) / 2.0 / 1e6)


def test_the_share_of_others_is_what_neither_we_nor_idleness_account_for():
    before, after = Ticks(1000, 5000), Ticks(1250, 5400)
    assert share_of_others(before, after, own_s=1.5, ticks_per_s=100) == pytest.approx(0.25)
    assert share_of_others(before, after, own_s=9.0, ticks_per_s=100) == 0.0
    assert share_of_others(before, before, own_s=0.0, ticks_per_s=100) is None
    assert share_of_others(None, after, own_s=0.0, ticks_per_s=100) is None


def test_ticks_are_read_as_linux_writes_them(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 2 3 100 20 4 5 6 7 8\ncpu0 1 2 3\n", encoding="utf-8")
    assert watch.read_ticks(stat) == Ticks(10 + 2 + 3 + 4 + 5 + 6, 10 + 2 + 3 + 4 + 5 + 6 + 100 + 20)
    stat.write_text("intr 1\n", encoding="utf-8")
    assert watch.read_ticks(stat) is None
    assert watch.read_ticks(tmp_path / "nowhere") is None


def test_a_watch_looks_at_what_happened_since_its_last_look(monkeypatch):
    ticks = iter([Ticks(0, 0), Ticks(100, 200), Ticks(150, 200), Ticks(150, 400), Ticks(0, 0)])
    monkeypatch.setattr(watch, "read_ticks", lambda: next(ticks))
    monkeypatch.setattr(watch, "_ticks_per_s", lambda: 100)
    monkeypatch.setattr(watch, "process_seconds", lambda process: 0.0)
    monkeypatch.setattr(watch.time, "process_time", lambda: 5.0)
    looker = Watch(lambda: 7.0)
    assert (looker.look(), looker.look()) == (Look(7.0, 0.5), Look(7.0, 0.0))


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ([Look(10e9, 0.02), Look(9e9, 0.05)], []),
        ([Look(10e9, 0.02), Look(9e9, 0.31)], ["31%"]),
        ([Look(10e9, None), Look(8e9, None)], ["8.0 to 10.0 GB/s"]),
        ([Look(10e9, 0.5), Look(5e9, 0.1)], ["50%", "5.0 to 10.0 GB/s"]),
    ],
)
def test_a_machine_that_was_not_quiet_is_called_so(looks, words):
    assert_says(cautions(looks), words)


def test_a_machine_that_was_not_the_same_beside_every_run_is_called_so():
    look = [Look(10e9, 0.0)]
    assert_says(cautions(look, [9e9, 9.5e9], [1e12, 1.1e12]), [])
    assert_says(cautions(look, [9e9, 8e9], [1e12, 1.1e12]), ["memory read 8.0 to 10.0 GB/s"])
    assert_says(cautions(look, [], [2e12, 0.7e12]), ["products ran at 700.0 to 2,000.0 GFLOP/s"])


def assert_says(found, words):
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))


def test_a_process_s_own_time_is_read():
    assert watch.process_seconds(2**30) == 0.0
    import os

    assert watch.process_seconds(os.getpid()) > 0.1


def test_only_clear_choices_are_compared():
    def top(best, gap):
        return Top([best, 99], [5.0, 5.0 - gap], std=2.0)

    pairs = [(top(1, 1.0), top(1, 0.1)), (top(2, 0.01), top(3, 0.1)), (top(4, 1.0), top(5, 1.0))]
    assert count_equal(pairs, clear=0.05) == Agreement(1, 2)
    assert [Agreement(*counts).verdict for counts in ((2, 2), (1, 2), (0, 0))] == ["yes", "no", "unknown"]


# Engines


@pytest.fixture(scope="module", params=[MinillmEngine, TransformersEngine])
def engine(request, tiny_dir):
    return request.param(spec(tiny_dir))


def test_an_engine_knows_its_bytes(engine, tiny_dir):
    model = load_model(open_checkpoint(Path(tiny_dir)))
    assert engine.weight_bytes == model.nbytes
    assert engine.pass_bytes == model.nbytes - model.embed_tokens.weight.nbytes, "this model's head is its own"
    assert engine.kv_bytes_per_token == 2 * 3 * 2 * 10 * 4
    assert engine.vocab_size == model.config.vocab_size


def held_tokens(engine):
    return engine.cache.length if isinstance(engine, MinillmEngine) else engine.cache.get_seq_length()


def test_decoding_leaves_the_prefilled_sequence_as_it_was(engine):
    assert engine.prefill(random_ids(9)[0].tolist(), 20) > 0
    assert engine.decode(1, 4) > 0
    assert engine.decode(3, 4) > 0
    assert held_tokens(engine) == 9


def test_a_batch_decodes_copies_of_the_prefilled_sequence(tiny_dir, monkeypatch):
    engine = MinillmEngine(spec(tiny_dir))
    engine.prefill(random_ids(9)[0].tolist(), 20)
    seen = []
    from minillm.benchmark import ours

    def spy(model, ids, cache):
        seen.append(ids.clone())
        return prefill(model, ids, cache)

    prefill = ours.prefill
    monkeypatch.setattr(ours, "prefill", spy)
    engine.decode(1, 4)
    alone = torch.cat(seen, dim=1)
    seen.clear()
    engine.decode(3, 4)
    assert alone.shape == (1, 4)
    assert torch.equal(torch.cat(seen, dim=1), alone.expand(3, 4))


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_our_bytes_are_those_of_weights_and_cache_as_they_are_stored(tmp_path, quantize, kv_dtype):
    config = tiny_config(hidden_size=64, intermediate_size=96, num_attention_heads=4, head_dim=16)
    write_random_model(config, tmp_path / "model")
    asked = replace(spec(tmp_path / "model"), quantize=quantize, kv_dtype=kv_dtype, compile=False)
    engine = MinillmEngine(asked)
    ends, layers = 107 * 64 * 2, 3 * (64 * (4 + 2 * 2) * 16 + 64 * 64 + 3 * 64 * 96)  # of matrices; no norms
    bits_of_ends, bits_of_layers = {None: (32, 32), "int8": (8, 8), "int4": (8.5, 5)}[quantize]  # with groups' scales
    least = (ends * bits_of_ends + layers * bits_of_layers) / 8
    assert least <= engine.weight_bytes < 1.1 * least
    assert engine.kv_bytes_per_token == 2 * 3 * 2 * (16 + 4 if kv_dtype == "int8" else 4 * 16)
    assert not engine.compiled
    engine.prefill([1, 2, 3], 9)
    assert engine.decode(1, 4) > 0
    assert engine.decode(3, 4) > 0
    copies = engine._copies(3)
    for own, one in zip(
        (copies.keys, copies.values, *copies.scales),
        (engine.cache.keys, engine.cache.values, *engine.cache.scales),
        strict=True,
    ):
        assert torch.equal(own[:, :, :, :3], one[:, :, :, :3].expand(-1, 3, *own[:, :, :, :3].shape[2:]))


def test_a_decode_that_cannot_be_compiled_is_refused_only_where_it_was_asked_for(tmp_path, capsys):
    """A head_dim of 10 is not one that the compiled pass takes."""
    write_random_model(tiny_config(hidden_size=64, intermediate_size=96, head_dim=10, num_attention_heads=16), tmp_path)
    asked = replace(spec(tmp_path), quantize="int8")
    with pytest.raises(InputError, match="head_dim"):
        MinillmEngine(replace(asked, compile=True))
    assert not MinillmEngine(asked).compiled
    assert "going on without" in capsys.readouterr().err


def test_engines_on_the_same_weights_have_the_same_logits(tiny_dir):
    ids = random_ids(11)[0].tolist()
    ours, theirs = (kind(spec(tiny_dir)).next_logits(ids) for kind in (MinillmEngine, TransformersEngine))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_worker_answers_commands_and_a_user_s_errors(tiny_dir):
    from dataclasses import asdict

    worker = Worker()
    loaded = worker.answer({"do": "load", "spec": asdict(spec(tiny_dir))})
    assert Loaded(**loaded).load_s > 0
    assert worker.answer({"do": "prefill", "tokens": 9, "room": 20, "seed": 1})["seconds"] > 0
    assert worker.answer({"do": "decode", "batch": 2, "passes": 3})["seconds"] > 0
    tops = [worker.answer({"do": "top", "tokens": 9, "seed": seed}) for seed in (1, 1, 2)]
    assert tops[0] == tops[1] != tops[2]
    assert tops[0]["logits"][0] > tops[0]["logits"][1]
    assert "do not fit" in worker.answer({"do": "prefill", "tokens": 21, "room": 20, "seed": 1})["error"]


def test_the_peak_of_a_process_of_its_own_holds_the_weights(tmp_path):
    config = tiny_config(vocab_size=20_000, hidden_size=256, num_attention_heads=4, tie_word_embeddings=True)
    write_random_model(config, tmp_path / "model")
    with RemoteEngine("ours", spec(tmp_path / "model")) as remote:
        assert remote.prefill(20, 30, seed=1) > 0
        assert remote.decode(2, 3) > 0
        weights = remote.loaded.weight_bytes
        assert weights > 20e6
        peak = remote.peak_bytes()
        assert peak is not None, "this test runs where there is a /proc"
        assert 0.95 * weights < peak < 3 * weights
        assert len(remote.top(5, seed=1).ids) == 2


def test_a_process_that_cannot_load_says_why_and_one_that_dies_is_reported(tiny_dir, tmp_path):
    with pytest.raises(InputError, match="there is no model"):
        RemoteEngine("ours", spec(tmp_path / "nowhere"))
    with RemoteEngine("ours", spec(tiny_dir)) as remote:
        remote._process.kill()
        with pytest.raises(InputError, match=r"the process of ours ended .*signal 9: .*, as when memory runs out\)"):
            remote.peak_bytes()


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (-9, ", as when memory runs out"),
        (-4, ", as when the engine was compiled for another processor, or by a compiler that got it wrong"),
        (-6, ""),
        (-11, ""),
    ],
)
def test_of_the_signals_that_end_a_process_some_suggest_why(code, hint):
    assert why_ended(code) == f"signal {-code}: {signal.strsignal(-code)}{hint}"
    assert why_ended(3) == "exit code 3, see above"


# Models and files


def test_a_random_model_is_one_that_loads_and_whose_logits_are_finite(tmp_path):
    config = tiny_config(tie_word_embeddings=True)
    write_random_model(config, tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    assert replace(checkpoint.config, eos_token_ids=()) == replace(config, eos_token_ids=())
    engine = MinillmEngine(spec(tmp_path / "model", dtype="bfloat16"))
    logits = engine.next_logits([1, 2, 3])
    assert np.isfinite(logits).all()
    assert logits.std() > 0
    assert engine.model.norm.weight.eq(1).all()


def test_a_well_known_llama_s_shape_becomes_its_config():
    config = random_config("Llama-3.2-1B")
    assert shape_of(config) == BY_NAME["llama-3.2-1b"].shape
    with pytest.raises(InputError, match="no Llama"):
        config_of("mixtral", BY_NAME["mixtral-8x7b"].shape)


def test_llama_cpp_gets_files_with_as_many_bits_as_ours(tiny_dir, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("minillm.benchmark.peers.write_gguf", lambda _, file, dtype: (made.append(dtype), file.touch()))
    monkeypatch.setattr("minillm.benchmark.peers.quantize_gguf", lambda _, file, kind, threads: made.append(kind))
    lineup = Lineup(spec(tiny_dir), open_checkpoint(Path(tiny_dir)), (TRANSFORMERS, LLAMA_CPP), tmp_path)
    plain = ["llama.cpp BF16", "llama.cpp BF16 -fa off"]
    assert list(lineup.specs(Mode("bfloat16"))) == [MINILLM, TRANSFORMERS, *plain]
    assert list(lineup.specs(Mode("bfloat16", "int8"))) == [MINILLM, "llama.cpp Q8_0", "llama.cpp Q8_0 -fa off"]
    quantized = lineup.specs(Mode("bfloat16", "int4"))
    both = [name for kind in ("Q4_1", "Q4_0") for name in (f"llama.cpp {kind}", f"llama.cpp {kind} -fa off")]
    assert list(quantized) == [MINILLM, *both]
    assert quantized[MINILLM].quantize == "int4"
    assert quantized["llama.cpp Q4_1"].path == str(tmp_path / "Q4_1.gguf")
    assert [title for title, asked in quantized.items() if asked.flash_off] == both[1::2]
    assert [replace(quantized[title], flash_off=False) for title in both[1::2]] == [quantized[t] for t in both[::2]]
    assert made == ["bfloat16", "float32", "Q8_0", "Q4_1", "Q4_0"], "quantized from what loses nothing, written once"
    assert lineup.unquantized(Mode("bfloat16", "int4")) == Mode("float32")


def test_what_engines_choose_is_compared_once_per_program_and_file():
    """A .gguf file may be read by two programs, and by one of them in two ways."""
    ours, theirs = spec("model.gguf"), spec("model.gguf", LLAMA_CPP)
    other = spec("other.gguf", LLAMA_CPP)
    specs = {MINILLM: ours, "a": theirs, "a -fa off": replace(theirs, flash_off=True), "b": other}
    assert one_per_file(specs) == {MINILLM: ours, "a": theirs, "b": other}


# The command


def test_the_bench_runs_side_by_side_and_json_has_everything(tiny_dir, capsys):
    args = ("--model", tiny_dir, *QUICK, "--runs", "2", "--compare", TRANSFORMERS, "--json")
    code, out, err = call(capsys, "bench", *args)
    assert code == 0
    result = json.loads(out)
    assert set(result) == {
        "command", "time", "machine", "versions", "model", "trusted", "cautions", "modes", "agreement"
    }  # fmt: skip
    assert result["command"].startswith("minillm bench --model")
    assert result["agreement"]["float32"][TRANSFORMERS]["verdict"] == "yes"
    (mode,) = result["modes"]
    assert mode["ceilings"] == {"bandwidth_bytes_per_s": 2e9, "flops_per_s": 4e9}, "the better of before and meanwhile"
    assert {(run["what"], run["limit"]) for run in mode["runs"]} == {("prefill", 4e9), ("decode", 2e9)}
    assert set(mode["engines"]) == {MINILLM, TRANSFORMERS}
    assert len(mode["rounds"]) == 2
    assert len(mode["runs"]) == 2 * 2 * 3
    assert all(run["seconds"] > 0 for run in mode["runs"])
    assert [(row["what"], row["tokens"], row["batch"], row["engine"]) for row in mode["summary"]] == [
        (*point, engine)
        for point in (("prefill", 5, 1), ("decode", 7, 1), ("decode", 7, 2))
        for engine in (MINILLM, TRANSFORMERS)
    ]
    for row in mode["summary"]:
        assert row["least"] <= row["median"] <= row["most"]
    memory = mode["engines"][MINILLM]["memory"]
    assert memory["kv"] == (7 + 3) * 2 * 3 * 2 * 10 * 4
    assert "engines agree: yes" in err, "beside JSON the tables go to stderr"


def test_the_tables_go_to_stdout_and_fit_80_columns(tiny_dir, capsys, monkeypatch):
    monkeypatch.setattr("minillm.benchmark.job.machine_is_busy", lambda: "other programs used 40% of the processors")
    code, out, _ = call(
        capsys, "bench", "--model", tiny_dir, "--dtype", "float32", "--request", "7", "3", "--runs", "1"
    )
    assert code == 0
    assert max(map(len, out.split("\n"))) <= 80
    lines = out.split("\n")
    assert lines[0].startswith("CAUTION: other programs used 40%")
    assert out.index("GB/s") < out.index("prefill"), "ceilings first"
    for word in ("TTFT", "MBU", "MFU", "peak", "load", "the whole request (7 tokens in, 3 out): minillm"):
        assert word in out


def test_the_longest_names_and_figures_fit_80_columns_uncut():
    names = [MINILLM, TRANSFORMERS, "llama.cpp Q4_1", "llama.cpp Q4_1 -fa off"]
    figures = (12345.0, 11234.0, 13456.0, 0.9991, 0.49)
    rows = [
        Row(what, 16384, 16, name, *figures, None if name == MINILLM else 10.37)
        for what in ("prefill", "decode")
        for name in names
    ]
    loaded = {name: Loaded(12.34, 1, 2_471_600_000, 2_471_600_000, 1) for name in names}
    memory = {name: Memory(3_456_700_000, 2_471_600_000, 1_234_500_000) for name in names}
    looks, machine = [Look(1e9, 0.0)], Machine(1e9, 1e9)
    stream = StringIO()
    result = Result(Mode("bfloat16", "int4"), loaded, memory, [], looks, machine, {})
    Report(stream).result(result, rows, Plan((16384,), (16384,), (16,), 2, 3), as_request=False)
    out = stream.getvalue()
    assert "…" not in out
    assert max(map(len, out.split("\n"))) <= 80
    assert out.count("llama.cpp Q4_1 -fa off") == 3, "prefill, decode and memory have a line for each engine"


def test_two_lines_of_llama_cpp_are_explained_where_there_are_any():
    for peers, explained in (((TRANSFORMERS,), False), ((TRANSFORMERS, LLAMA_CPP), True)):
        stream = StringIO()
        Report(stream).legend(peers)
        assert ("-fa off  llama.cpp" in stream.getvalue()) == explained
        assert max(map(len, stream.getvalue().split("\n"))) <= 80


def test_files_are_gone_afterwards(tiny_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path))
    monkeypatch.setitem(BY_NAME, "tiny", SimpleNamespace(name="tiny", shape=shape_of(tiny_config())))
    args = ("--dtype", "float32", "--request", "7", "3", "--runs", "1")
    code, out, err = call(capsys, "bench", "--random", "tiny", *args)
    assert code == 0, err
    assert "random weights, tiny" in out
    assert list(tmp_path.iterdir()) == []
