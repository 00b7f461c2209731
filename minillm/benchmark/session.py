"""One mode measured from end to end: load every engine, look at its memory, take turns, compare what they compute."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from minillm.benchmark.agreement import Agreement, agreement
from minillm.benchmark.ceilings import Ceilings
from minillm.benchmark.engine import MINILLM, EngineSpec
from minillm.benchmark.plan import NOT_QUANTIZED, Mode, Plan
from minillm.benchmark.remote import Loaded, RemoteEngine
from minillm.benchmark.turns import DECODE, PREFILL, Run, limits_of, take_turns
from minillm.benchmark.watch import Look, Watch, cautions
from minillm.machine.roofline import Machine

MEMORY_PROMPT = 512
"""Memory is looked at while one request runs, whose prompt has so many tokens, or as many as the longest measured."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Memory:
    """The peak of an engine's process above the process once imported, in bytes, and what had to be there.

    `peak` is None where the system does not say.
    """

    peak: int | None
    weights: int
    kv: int

    @property
    def ratio(self) -> float | None:
        """Peak over (weights + KV): 1 is the least possible."""
        return None if self.peak is None else self.peak / (self.weights + self.kv)


@dataclass(frozen=True)
class Result:
    """Everything that was measured in one mode. `machine` are the ceilings, the best of what this run saw.

    `agreement` is by peer; a quantized mode has none: two quantizers round the same weights to different numbers.
    """

    mode: Mode
    loaded: dict[str, Loaded]
    memory: dict[str, Memory]
    runs: list[Run]
    looks: list[Look]
    machine: Machine
    agreement: dict[str, Agreement]

    @property
    def cautions(self) -> list[str]:
        """Why not to believe any of it, where there is a reason."""
        return cautions(self.looks, limits_of(self.runs, DECODE), limits_of(self.runs, PREFILL))


def measure_mode(mode: Mode, specs: Mapping[str, EngineSpec], plan: Plan, ceilings: Ceilings, tell: Tell) -> Result:
    """Load, measure, and let go again. Where a reading beside a run is better than what was measured before, that is
    kept: other programs can only make a ceiling too low.
    """
    with ExitStack() as stack:
        engines, memory = {}, {}
        for title, spec in specs.items():
            tell(f"{mode.name}: loading {title}")
            engines[title] = engine = stack.enter_context(RemoteEngine(title, spec))
            memory[title] = _memory(engine, plan)
        watch = Watch(lambda: ceilings(DECODE), [engine.process_id for engine in engines.values()])

        def after_round(number: int) -> None:
            look = watch.look()
            what = f"round {number} of {plan.runs}" if number else "the round that is not counted"
            tell(f"{mode.name}: {what} is over, memory reads {look.bandwidth_bytes_per_s / 1e9:.1f} GB/s")

        runs = take_turns(engines, plan, ceilings, after_round)
        agreed = _compare(engines) if mode.quantize == NOT_QUANTIZED else {}
    loaded = {title: engine.loaded for title, engine in engines.items()}
    return Result(mode, loaded, memory, runs, watch.looks[1:], _best(ceilings.before, runs, watch.looks), agreed)


def _best(before: Machine, runs: Sequence[Run], looks: Sequence[Look]) -> Machine:
    """The most that was read at any time."""
    reads = [before.bandwidth_bytes_per_s, *limits_of(runs, DECODE), *(look.bandwidth_bytes_per_s for look in looks)]
    return Machine(max(reads), max([before.flops_per_s, *limits_of(runs, PREFILL)]))


def _memory(engine: RemoteEngine, plan: Plan) -> Memory:
    """Run one request in the fresh process, and ask for its peak."""
    tokens = min(MEMORY_PROMPT, max(plan.lengths))
    engine.prefill(tokens, plan.room(tokens), seed=0)
    engine.decode(1, plan.passes)
    kv_bytes = plan.room(tokens) * engine.loaded.kv_bytes_per_token
    return Memory(engine.peak_bytes(), engine.loaded.weight_bytes, kv_bytes)


def compare_outputs(specs: Mapping[str, EngineSpec]) -> dict[str, Agreement]:
    """For each peer, whether it computes the model that we compute; for engines that are not loaded yet.

    Ours keeps its keys and values unrounded here: it is the weights that are compared.
    """
    specs = {title: replace(spec, kv_dtype=None, compile=False) for title, spec in one_per_file(specs).items()}
    with ExitStack() as stack:
        return _compare({title: stack.enter_context(RemoteEngine(title, spec)) for title, spec in specs.items()})


def one_per_file(specs: Mapping[str, EngineSpec]) -> dict[str, EngineSpec]:
    """The engines whose choices are compared: of those that are one program with the same file, the first."""
    first: dict[tuple[str, str], str] = {}
    for title, spec in specs.items():
        first.setdefault((spec.engine, spec.path), title)
    return {title: specs[title] for title in first.values()}


def _compare(engines: Mapping[str, RemoteEngine]) -> dict[str, Agreement]:
    ours = engines[MINILLM]
    compared = one_per_file({title: engine.spec for title, engine in engines.items()})
    return {title: agreement(ours, engines[title]) for title in compared if title != MINILLM}
