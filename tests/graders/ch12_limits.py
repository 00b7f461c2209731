"""12.5: the batch that memory and a target for the time per token allow."""

from collections.abc import Callable
from itertools import count

from graders.ch09 import H100, LLAMA_3_8B, SMALL, TOY
from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant
from minillm.machine.roofline import Machine, decode_work, shortest_seconds
from minillm.machine.shape import ModelShape, num_active_params, num_params

_TOY = "3 layers, hidden 24, MLP 40, 6 query and 2 key/value heads of 10, vocabulary 97"


def _kv(s: ModelShape, context: int, per_kv: float) -> float:
    return 2 * s.num_hidden_layers * s.num_key_value_heads * s.head_dim * context * per_kv


def _by_hand(s: ModelShape, context: int, m: Machine, memory: float, tpot: float, per_w: float, per_kv: float) -> int:
    """One more at a time, until a limit is met."""
    q, kv = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
    layer = 2 * s.hidden_size * (q + kv) + 3 * s.hidden_size * s.intermediate_size + 2 * s.hidden_size
    layers, head = s.num_hidden_layers * layer + s.hidden_size, s.vocab_size * s.hidden_size
    cache = 2 * s.num_hidden_layers * kv * context * per_kv
    flops = 2 * (layers + head) + 4 * q * s.num_hidden_layers * context
    for batch in count(1):
        read = (layers + head) * per_w + batch * cache
        too_slow = max(read / m.bandwidth_bytes_per_s, batch * flops / m.flops_per_s) > tpot
        if too_slow or (layers + 2 * head) * per_w + batch * cache > memory:
            return batch - 1
    raise AssertionError


def _asked(
    given: str,
    shape: ModelShape,
    context: int,
    machine: Machine,
    memory: float,
    tpot: float,
    per_weight: float = 2.0,
    per_kv: float = 2.0,
) -> Case:
    named = "Llama-3-8B on an H100" if shape is LLAMA_3_8B else f"{_TOY}; 100 bytes/s and 1,000 FLOP/s"
    words = f"{given}: {named}; context {context}, memory_bytes {memory:g}, tpot_s {tpot:g}"
    if (per_weight, per_kv) != (2.0, 2.0):
        words += f", {per_weight} bytes per weight and {per_kv} per kv"
    arguments = [shape, context, machine, memory, tpot, per_weight, per_kv]
    return formula(words, arguments, _by_hand(shape, context, machine, memory, tpot, per_weight, per_kv))


def _limits(
    *,
    weights: Callable[[ModelShape], int] = num_params,
    held: Callable[[float, int], float] = lambda kv, batch: kv * batch,
    use_memory: bool = True,
    use_time: bool = True,
    seconds: Callable[[float, float, int], float] = lambda reading, computing, batch: max(reading, computing),
    within: Callable[[float, float], bool] = lambda value, limit: value <= limit,
    answer: Callable[[int], int] = lambda good: good,
    kv: Callable[[ModelShape, int, float], float] = _kv,
    kv_bytes: Callable[[float, float], float] = lambda per_w, per_kv: per_kv,
    flops_of: Callable[[float, int], float] = lambda flops, batch: flops,
) -> Function:
    """A search by halves with one thing done otherwise."""

    def search(
        s: ModelShape, context: int, m: Machine, memory: float, tpot: float, per_w: float = 2.0, per_kv: float = 2.0
    ) -> int:
        def allowed(batch: int) -> bool:
            work = decode_work(s, batch, context, per_w, per_kv)
            reading, computing = work.bytes / m.bandwidth_bytes_per_s, flops_of(work.flops, batch) / m.flops_per_s
            fits = within(weights(s) * per_w + held(kv(s, context, kv_bytes(per_w, per_kv)), batch), memory)
            quick = within(seconds(reading, computing, batch), tpot)
            return (fits or not use_memory) and (quick or not use_time)

        good, bad = 0, 10_000_000
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if allowed(middle) else (good, middle)
        return answer(good)

    return search


def _per_token(
    s: ModelShape, context: int, m: Machine, memory: float, tpot: float, per_w: float = 2.0, per_kv: float = 2.0
) -> int:
    """While a step divided by its batch is quick enough. That falls with the batch, so the first one decides."""
    most = int(max(0, memory - num_params(s) * per_w) // _kv(s, context, per_kv))
    alone = shortest_seconds(decode_work(s, 1, context, per_w, per_kv), m)
    return most if alone <= tpot else 0


def _all_or_nothing(
    s: ModelShape, context: int, m: Machine, memory: float, tpot: float, per_w: float = 2.0, per_kv: float = 2.0
) -> int:
    most = int(max(0, memory - num_params(s) * per_w) // _kv(s, context, per_kv))
    return most if most and shortest_seconds(decode_work(s, most, context, per_w, per_kv), m) <= tpot else 0


def _in_one_go(
    s: ModelShape, context: int, m: Machine, memory: float, tpot: float, per_w: float = 2.0, per_kv: float = 2.0
) -> int:
    """Three straight lines over the batch; then a step back or forth, for a quotient that was rounded."""
    one, two = (decode_work(s, batch, context, per_w, per_kv) for batch in (1, 2))
    each = two.bytes - one.bytes
    lines = [
        (memory - num_params(s) * per_w) / _kv(s, context, per_kv),
        (tpot * m.bandwidth_bytes_per_s - (one.bytes - each)) / each,
        tpot * m.flops_per_s / one.flops,
    ]
    return max(0, int(min(lines) + 1e-9))


_WEIGHTS = num_params(TOY) * 2.0

LARGEST_BATCH = Grader(
    cases=[
        _asked("memory is the limit", LLAMA_3_8B, 4096, H100, 77e9, 0.1),
        _asked("time is the limit, by the bytes", LLAMA_3_8B, 4096, H100, 77e9, 0.01),
        _asked("time is the limit, by the operations", LLAMA_3_8B, 128, H100, 77e9, 0.02),
        _asked("memory is exactly enough for 19", TOY, 10, SMALL, _WEIGHTS + 19 * _kv(TOY, 10, 2.0), 1e6),
        _asked("the weights alone do not fit", LLAMA_3_8B, 4096, H100, 15e9, 0.1),
        _asked("one request alone is too slow", LLAMA_3_8B, 4096, H100, 77e9, 0.004),
        _asked("weights and cache in other formats", LLAMA_3_8B, 2048, H100, 40e9, 0.1, 0.5, 1.0),
        _asked("other formats, and time is the limit", LLAMA_3_8B, 2048, H100, 77e9, 0.008, 0.5, 1.0),
    ],
    mutants=[
        Mutant(
            _limits(use_memory=False),
            "You ask whether a step is quick enough, and not whether all their caches fit beside the weights.",
        ),
        Mutant(
            _limits(use_time=False),
            "You ask what fits, and not whether a step of so many is quick enough.",
        ),
        Mutant(
            _limits(weights=num_active_params),
            "You count the weights of a pass. Held are all of them, num_params: the embedding is there though it is"
            " only looked up.",
        ),
        Mutant(
            _limits(weights=lambda s: 0),
            "You give the whole memory to the cache. The weights are there first.",
        ),
        Mutant(
            _limits(held=lambda kv, batch: kv),
            "You count the cache of one request. Each brings its own.",
        ),
        Mutant(
            _limits(seconds=lambda reading, computing, batch: reading),
            "You ask how long the bytes take, and not the operations. A batch of short contexts is limited by"
            " arithmetic: shortest_seconds takes the longer of the two.",
        ),
        Mutant(
            _limits(seconds=lambda reading, computing, batch: computing),
            "You ask how long the operations take, and not the bytes: shortest_seconds takes the longer of the two.",
        ),
        Mutant(
            _limits(seconds=lambda reading, computing, batch: reading + computing),
            "You add the two times. Reading and computing go on side by side: the longer one counts.",
        ),
        Mutant(
            _all_or_nothing,
            "You ask whether the largest batch that fits is quick enough, and if not, give up. A smaller one may be.",
        ),
        Mutant(
            _limits(kv=lambda s, context, per_kv: _kv(s, context - 1, per_kv)),
            "You count one token too few. Each request has `context` tokens in its cache, with the new one.",
        ),
        Mutant(
            _per_token,
            "You divide the step by the batch. Every request waits for the whole step: that is its time per token."
            " Divided, it is what the server spends per token.",
        ),
        Mutant(
            _limits(within=lambda value, limit: value < limit),
            "You want less than the limits. What is exactly at a limit is still within it.",
        ),
        Mutant(
            _limits(answer=lambda good: good + 1),
            "One too many: you return the first batch that is not within the limits.",
        ),
        Mutant(
            _limits(answer=lambda good: max(1, good)),
            "Where not even one request is within both limits, the answer is 0.",
        ),
        Mutant(
            _limits(kv_bytes=lambda per_w, per_kv: per_w),
            "You count keys and values with the bytes of a weight. They have bytes_per_kv each.",
        ),
        Mutant(
            _limits(kv=lambda s, context, per_kv: _kv(s, context, per_kv) / 2),
            "You count keys or values. The cache holds both.",
        ),
        Mutant(
            _limits(kv=lambda s, context, per_kv: _kv(s, 1, per_kv)),
            "You count one token per request. Each has `context` of them in its cache.",
        ),
    ],
    alternatives=[_limits(), _in_one_go],
)
