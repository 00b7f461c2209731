"""One request: each second and each token is booked where it belongs."""

import importlib

import pytest
from tiny import save_tiny_model

from minillm import LLM, SamplingParams
from minillm.machine.limits import known_limits, measure_limits
from minillm.model import weight_bytes_per_pass
from minillm.tokenizer import Tokenizer
from minillm.trace import journey


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=256)
    return LLM(directory, device="cpu", dtype="float32")


class ManualClock:
    """A clock that moves only when it is told to, so that times can be asserted exactly."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        for module in ("minillm.llm", "minillm.generation", "minillm.decode"):
            monkeypatch.setattr(f"{module}.clock", lambda device: self.now)

    def slow_down(self, monkeypatch, target, seconds):
        """Each call of `target` takes so many seconds."""
        module, name = target.rsplit(".", 1)
        owner = importlib.import_module(module) if "Tokenizer" not in module else Tokenizer
        original = getattr(owner, name)

        def slow(*args, **kwargs):
            self.now += seconds
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, slow)


@pytest.fixture
def timed(tiny, monkeypatch):
    """Tokenizing takes 1 s, a prefill 10 s, a decode pass 2 s, a choice 0.5 s."""
    clock = ManualClock(monkeypatch)
    clock.slow_down(monkeypatch, "minillm.tokenizer.Tokenizer.encode", 1)
    clock.slow_down(monkeypatch, "minillm.generation.prefill", 10)
    clock.slow_down(monkeypatch, "minillm.decode.prefill", 2)
    clock.slow_down(monkeypatch, "minillm.decode.sample_one", 0.5)
    return clock


def test_each_second_is_booked_where_it_was_spent(tiny, timed):
    running = tiny.start("the cat sat", SamplingParams(max_tokens=4, ignore_eos=True))
    m = running.run().metrics
    assert running.tokenize_s == 1
    assert running.prefill_s == 10
    assert [(step.forward_s, step.sample_s) for step in running.steps] == [(0, 0.5)] + [(2, 0.5)] * 3
    assert m.ttft_s == 11.5, "the wait for the first token begins before the prompt is tokenized"
    assert m.tpot_s == 2.5
    assert m.total_s == 11.5 + 3 * 2.5
    assert m.prefill_tokens_per_s == m.prompt_tokens / 10
    assert running.detokenize_s == 0, "none of the model's time"


def test_a_prefix_from_the_cache_is_not_counted_as_prefilled(tiny, timed):
    cache = tiny.new_cache(100)
    first = tiny.start("the cat sat", SamplingParams(max_tokens=1, ignore_eos=True), cache=cache)
    first.run()
    again = tiny.start("the cat sat on", SamplingParams(max_tokens=1), cache=cache, cached_ids=first.prompt_ids)
    m = again.run().metrics
    assert m.cached_tokens == len(first.prompt_ids)
    assert m.prefill_tokens_per_s == (m.prompt_tokens - m.cached_tokens) / 10


def test_a_slow_reader_does_not_make_the_engine_look_slow(tiny, timed):
    running = tiny.start("the cat sat", SamplingParams(max_tokens=4, ignore_eos=True))
    timed.now += 1000  # before it is run at all
    for _ in running:
        timed.now += 100
    m = running.metrics()
    assert (m.ttft_s, m.tpot_s, m.total_s) == (11.5, 2.5, 19.0)


def test_a_request_stopped_in_its_prefill_claims_nothing(tiny, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("minillm.generation.prefill", interrupt)
    running = tiny.start("the cat", SamplingParams(max_tokens=4))
    with pytest.raises(KeyboardInterrupt):
        running.run()
    assert running.metrics().ttft_s is None
    assert [row.came_out for row in journey(running)][1:] == ["stopped before its end"]
    assert "read" not in journey(running)[1].moved


def test_the_ceiling_is_what_memory_allows_for_the_bytes_of_a_mean_pass(tiny, timed):
    """4 tokens: 3 passes, which read the weights and, of keys and values, one token more each time."""
    running = tiny.start("the cat sat", SamplingParams(max_tokens=4, ignore_eos=True))
    running.bandwidth_bytes_per_s = 1e6
    m = running.run().metrics
    per_token = running.cache.bytes_per_token
    mean_kv = sum((m.prompt_tokens + n) * per_token for n in (1, 2, 3)) / 3
    assert running.decode_bytes_per_pass() == (weight_bytes_per_pass(tiny.model), mean_kv)
    assert m.bandwidth_ceiling_tokens_per_s == 1e6 / (weight_bytes_per_pass(tiny.model) + mean_kv)
    assert m.mbu == pytest.approx(m.decode_tokens_per_s / m.bandwidth_ceiling_tokens_per_s)


def test_without_a_cache_no_keys_and_values_are_read(tiny):
    running = tiny.start("the cat sat", SamplingParams(max_tokens=3), use_cache=False)
    running.run()
    assert running.decode_bytes_per_pass() == (weight_bytes_per_pass(tiny.model), 0.0)


@pytest.mark.parametrize(("bandwidth", "max_tokens"), [(None, 4), (1e6, 1)])
def test_there_is_no_ceiling_without_a_bandwidth_or_without_a_pass(tiny, bandwidth, max_tokens):
    running = tiny.start("the cat sat", SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    running.bandwidth_bytes_per_s = bandwidth
    m = running.run().metrics
    assert (m.bandwidth_ceiling_tokens_per_s, m.mbu) == (None, None)


def test_a_request_has_the_ceiling_of_a_machine_that_was_measured_before(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(tiny, "limits", None)
    monkeypatch.setattr("minillm.machine.limits.read_bandwidth", lambda device: 30e9)
    assert tiny.start("the cat").bandwidth_bytes_per_s is None
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path))
    measure_limits("cpu", [])
    monkeypatch.setattr(tiny, "limits", known_limits())
    assert tiny.start("the cat").bandwidth_bytes_per_s == 30e9


def test_measuring_needs_room_and_does_without_where_there_is_none(tiny, monkeypatch):
    def fail(device):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("minillm.machine.limits.read_bandwidth", fail)
    running = tiny.start("the cat")
    running.bandwidth_bytes_per_s = None
    running.measure_bandwidth()
    assert running.bandwidth_bytes_per_s is None
