"""12.1 and 12.2: what a mixed step asks of a machine, and how many steps two policies take."""

import heapq
import math
from collections.abc import Callable, Sequence

from graders.ch09 import LLAMA_3_8B, TOY
from graders.common import formula
from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.machine.roofline import Work, forward_flops
from minillm.machine.shape import ModelShape, num_active_params

# --- 12.1 ------------------------------------------------------------------------------------------------------------

Spans = Sequence[tuple[int, int]]
_TOY = "3 layers, hidden 24, MLP 40, 6 query and 2 key/value heads of 10, vocabulary 97"


def _by_hand(shape: ModelShape, spans: Spans, sampled: int, per_weight: float, per_kv: float) -> tuple[float, float]:
    """Every product, token by token; every weight and every number of the cache, once."""
    q, kv = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    layer = shape.hidden_size * (q + 2 * kv + q) + 3 * shape.hidden_size * shape.intermediate_size
    layers = shape.num_hidden_layers * (layer + 2 * shape.hidden_size) + shape.hidden_size  # with the norms
    head = shape.vocab_size * shape.hidden_size
    products = head * sampled
    for context, new in spans:
        for position in range(context + 1, context + new + 1):
            products += layers + 2 * shape.num_hidden_layers * q * position
    held = sum(context + new for context, new in spans)
    return 2.0 * products, (layers + head) * per_weight + held * 2 * shape.num_hidden_layers * kv * per_kv


def _seen(result: object) -> Observation:
    if not isinstance(result, Work):
        return {"the result": in_words(result), "flops": 0.0, "bytes": 0.0}
    return {"the result": "a Work", "flops": result.flops, "bytes": result.bytes}


def _mix(shape: ModelShape, spans: Spans, sampled: int, per_weight: float = 2.0, per_kv: float = 2.0) -> Case:
    flops, read = _by_hand(shape, spans, sampled, per_weight, per_kv)
    named = "Llama-3-8B" if shape is LLAMA_3_8B else _TOY
    given = f"{named}; spans {list(spans)}, sampled {sampled}, {per_weight} bytes per weight and {per_kv} per kv"
    return Case(
        given,
        lambda f: _seen(f(shape, list(spans), sampled, per_weight, per_kv)),
        lambda: {"the result": "a Work", "flops": flops, "bytes": read},
    )


def _work(
    *,
    head_rows: Callable[[Spans, int], int] = lambda spans, sampled: sampled,
    pairs: Callable[[int, int], int] = lambda context, new: new * context + new * (new + 1) // 2,
    all_pairs: Callable[[Spans], int] | None = None,
    reads: Callable[[Spans], int] = lambda spans: 1,
    held: Callable[[int, int], int] = lambda context, new: context + new,
    kv_heads: Callable[[ModelShape], int] = lambda s: s.num_key_value_heads,
    both: float = 2,
    computed: Callable[[int, int], int] = lambda context, new: new,
) -> Function:
    """The count with one part of it done otherwise."""

    def count(s: ModelShape, spans: Spans, sampled: int, per_weight: float = 2.0, per_kv: float = 2.0) -> Work:
        head = s.vocab_size * s.hidden_size
        layers = num_active_params(s) - head
        seen = all_pairs(spans) if all_pairs else sum(pairs(*span) for span in spans)
        flops = 2 * layers * sum(computed(*span) for span in spans) + 2 * head * head_rows(spans, sampled)
        flops += 4 * s.num_attention_heads * s.head_dim * s.num_hidden_layers * seen
        read = reads(spans) * (layers + head) * per_weight
        tokens = sum(held(*span) for span in spans)
        return Work(float(flops), read + tokens * both * s.num_hidden_layers * kv_heads(s) * s.head_dim * per_kv)

    return count


def _as_one_sequence(spans: Spans) -> int:
    new, context = sum(n for _, n in spans), sum(c for c, _ in spans)
    return new * context + new * (new + 1) // 2


def _swapped(s: ModelShape, spans: Spans, sampled: int, per_weight: float = 2.0, per_kv: float = 2.0) -> Work:
    return _work()(s, [(new, context) for context, new in spans], sampled, per_weight, per_kv)


def _two_bytes(s: ModelShape, spans: Spans, sampled: int, per_weight: float = 2.0, per_kv: float = 2.0) -> Work:
    return _work()(s, spans, sampled)


def _head_once(s: ModelShape, spans: Spans, sampled: int, per_weight: float = 2.0, per_kv: float = 2.0) -> Work:
    """The head's products, where its operations are to be taken off."""
    whole = _work()(s, spans, len(spans), per_weight, per_kv)
    return Work(whole.flops - s.vocab_size * s.hidden_size * (len(spans) - sampled), whole.bytes)


def _with_forward(s: ModelShape, spans: Spans, sampled: int, per_weight: float = 2.0, per_kv: float = 2.0) -> Work:
    """By the engine's own counts: what a pass costs per sequence, and the head put right."""
    head = 2 * s.vocab_size * s.hidden_size
    flops = sum(forward_flops(s, 1, new, context) - head for context, new in spans) + head * sampled
    per_token = 2 * s.num_hidden_layers * s.num_key_value_heads * s.head_dim
    numbers = sum(context + new for context, new in spans) * per_token
    return Work(float(flops), num_active_params(s) * per_weight + numbers * per_kv)


STEP_WORK = Grader(
    cases=[
        _mix(TOY, [(11, 1)], 1),
        _mix(TOY, [(11, 1), (6, 1), (30, 1)], 3),
        _mix(TOY, [(0, 7)], 1),
        _mix(TOY, [(8, 5)], 0),
        _mix(TOY, [(11, 1), (20, 1), (8, 5), (0, 4)], 3, 4.0, 1.0),
        _mix(TOY, [(11, 1), (8, 5), (0, 4)], 1),
        _mix(LLAMA_3_8B, [*[(4095, 1)] * 31, (1024, 481)], 31),
        _mix(LLAMA_3_8B, [*[(511, 1)] * 8], 8, 0.5, 1.0),
    ],
    mutants=[
        Mutant(
            _work(reads=len),
            "You read the weights once for each request. One read serves all that are in the pass: that is what a batch"
            " is for.",
        ),
        Mutant(
            _work(reads=lambda spans: sum(new for _, new in spans)),
            "You read the weights once for each new token. They are read once per pass, however many tokens share it.",
        ),
        Mutant(
            _work(head_rows=lambda spans, sampled: len(spans)),
            "You apply the head once for each request. One whose prompt is not read to its end needs no logits: only"
            " `sampled` rows go there.",
        ),
        Mutant(
            _work(head_rows=lambda spans, sampled: sum(new for _, new in spans)),
            "You apply the head to every new token. Only `sampled` rows go there.",
        ),
        Mutant(
            _work(head_rows=lambda spans, sampled: 0),
            "You leave out the head's operations: vocab_size x hidden_size products for each sampled row.",
        ),
        Mutant(
            _work(all_pairs=_as_one_sequence),
            "You count pairs as if all requests were one sequence. They share the pass, but a token attends to the"
            " tokens of its own request alone.",
        ),
        Mutant(
            _work(pairs=lambda context, new: new * (new + 1) // 2),
            "You leave out the tokens in the cache: each new token compares with those as well.",
        ),
        Mutant(
            _work(pairs=lambda context, new: new * (context + new)),
            "You count the whole square of pairs. Of a chunk, token t sees context + t, not the tokens after it.",
        ),
        Mutant(
            _work(held=lambda context, new: new),
            "You read only the keys and values of the new tokens. Attention reads those of the whole context too.",
        ),
        Mutant(
            _work(held=lambda context, new: context),
            "You leave out the new tokens' own keys and values: context + new are read.",
        ),
        Mutant(
            _work(held=lambda context, new: new * context + new * (new + 1) // 2),
            "You read the context once for each new token. The tokens of a chunk share one read of it.",
        ),
        Mutant(
            _work(held=lambda context, new: 0),
            "You leave out keys and values. Each request brings its own, and at long contexts they outweigh the"
            " weights.",
        ),
        Mutant(
            _work(kv_heads=lambda s: s.num_attention_heads),
            "You count a key and a value for every query head. Keys and values have num_key_value_heads.",
        ),
        Mutant(
            _swapped,
            "You have the two numbers of a span the wrong way round: (context, new).",
        ),
        Mutant(
            _two_bytes,
            "You count two bytes for each number. They are bytes_per_weight and bytes_per_kv.",
        ),
        Mutant(
            _head_once,
            "You take off one operation per weight of the head for each row that does not go there. It is two, as"
            " everywhere.",
        ),
        Mutant(
            _work(both=1),
            "You count keys or values. There are both: 2 numbers per layer, key/value head and head_dim.",
        ),
        Mutant(
            _work(computed=lambda context, new: context + new),
            "You compute the whole context again. What the cache holds is read, not computed.",
        ),
    ],
    alternatives=[_work(), _with_forward],
)

# --- 12.2 ------------------------------------------------------------------------------------------------------------


def _played(lengths: Sequence[int], places: int, refill: bool) -> int:
    """Step by step, as a batch would be."""
    waiting, running, steps = list(lengths), [], 0
    while waiting or running:
        free = places - len(running) if refill or not running else 0
        running, waiting = running + waiting[:free], waiting[free:]
        running = [left - 1 for left in running if left > 1]
        steps += 1
    return steps


def _policy(given: str, lengths: Sequence[int], places: int, refill: bool, want: int) -> Case:
    """`want` is counted on paper."""
    words = f"{given}: lengths {list(lengths)}, places {places}, refill {refill}"
    return formula(words, [list(lengths), places, refill], want)


def _either(static: Callable[[list[int], int], int], continuous: Callable[[list[int], int], int]) -> Function:
    def steps(lengths: Sequence[int], places: int, refill: bool) -> int:
        return continuous(list(lengths), places) if refill else static(list(lengths), places)

    return steps


def _waves(lengths: list[int], places: int) -> list[list[int]]:
    return [lengths[first : first + places] for first in range(0, len(lengths), places)]


def _static(lengths: list[int], places: int) -> int:
    return sum(map(max, _waves(lengths, places)))


def _continuous(lengths: list[int], places: int) -> int:
    ends = [0] * places
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends)


def _a_step_late(lengths: list[int], places: int) -> int:
    ends = [0] * places
    for number, length in enumerate(lengths):
        heapq.heapreplace(ends, ends[0] + length + (number >= places))
    return max(ends)


def _dealt_round(lengths: list[int], places: int) -> int:
    return max((sum(lengths[place::places]) for place in range(places)), default=0)


DECODE_STEPS = Grader(
    cases=[
        _policy("three answers", [2, 5, 1], 2, refill=False, want=6),
        _policy("three answers", [2, 5, 1], 2, refill=True, want=5),
        _policy("all equal", [4, 4, 4, 4], 2, refill=False, want=8),
        _policy("all equal", [4, 4, 4, 4], 2, refill=True, want=8),
        _policy("one long answer comes first", [9, 1, 2, 3, 1], 2, refill=False, want=13),
        _policy("one long answer comes first", [9, 1, 2, 3, 1], 2, refill=True, want=9),
        _policy("one long answer comes last", [2, 3, 1, 2, 9], 2, refill=False, want=14),
        _policy("one long answer comes last", [2, 3, 1, 2, 9], 2, refill=True, want=12),
        _policy("short and long by turns", [1, 8, 1, 8, 1, 8], 2, refill=True, want=17),
        _policy("short and long by turns", [1, 8, 1, 8, 1, 8], 3, refill=False, want=16),
        _policy("fewer requests than places", [3, 7], 5, refill=False, want=7),
        _policy("fewer requests than places", [3, 7], 5, refill=True, want=7),
        _policy("one place", [3, 1, 4], 1, refill=True, want=8),
        _policy("no requests", [], 3, refill=False, want=0),
        _policy("no requests", [], 3, refill=True, want=0),
    ],
    mutants=[
        Mutant(
            _either(_continuous, _static),
            "You have the two policies the wrong way round: with refill, a free place is taken at once.",
        ),
        Mutant(
            _either(_static, _static),
            "With refill you still wait until the whole batch has ended. A free place is taken in the next step.",
        ),
        Mutant(
            _either(_continuous, _continuous),
            "Without refill you give a free place away before the batch has ended.",
        ),
        Mutant(
            _either(_static, lambda ls, p: math.ceil(sum(ls) / p)),
            "You divide the tokens by the places. That is the least there could be: at the end places stay empty,"
            " because an answer is not shared out.",
        ),
        Mutant(
            _either(lambda ls, p: _static(sorted(ls), p), _continuous),
            "You sort the requests by length. Nobody knows beforehand how long an answer will be: they are taken in the"
            " order in which they came.",
        ),
        Mutant(
            _either(_static, lambda ls, p: _continuous(sorted(ls, reverse=True), p)),
            "You let the longest answers begin first. Nobody knows beforehand which those are: requests are taken in"
            " the order in which they came.",
        ),
        Mutant(
            _either(lambda ls, p: max(ls, default=0) * -(-len(ls) // p), _continuous),
            "You let every batch take as long as the longest answer of all. It ends with the longest of its own.",
        ),
        Mutant(
            _either(lambda ls, p: sum(max(w) for w in _waves(ls, p) if len(w) == p), _continuous),
            "You leave out the last batch where it is not full. Its requests want their tokens too.",
        ),
        Mutant(
            _either(lambda ls, p: sum(math.ceil(sum(w) / len(w)) for w in _waves(ls, p)), _continuous),
            "You take the mean of a batch. It ends with its longest answer.",
        ),
        Mutant(
            _either(_static, _dealt_round),
            "You deal the requests round, one to each place in turn. The next request takes the place that becomes free"
            " first.",
        ),
        Mutant(
            _either(lambda ls, p: _static(ls[::-1], p), lambda ls, p: _continuous(ls[::-1], p) if ls else 0),
            "You take the requests from the end of the list. They are in the order in which they came: the first one"
            " begins first.",
        ),
        Mutant(
            _either(lambda ls, p: _static(ls, p) + bool(ls), lambda ls, p: _continuous(ls, p) + bool(ls)),
            "One step too many. The batch that begins is computed in the very first step.",
        ),
        Mutant(
            _either(_static, _a_step_late),
            "You lose a step at each change. Where a member has ended, the next one has a token in the very next step.",
        ),
        Mutant(
            lambda lengths, places, refill: sum(lengths),
            "That is the number of tokens. A step gives each member of the batch one.",
        ),
    ],
    alternatives=[_played, _either(_static, _continuous)],
)
