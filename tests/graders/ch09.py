"""Graders of chapter 9: the roofline, the work of a pass, and the batch at which decode turns."""

from collections.abc import Callable
from typing import Any

from graders.common import formula
from minillm.exercises.grading import Grader, Mutant
from minillm.machine.roofline import Machine
from minillm.machine.shape import ModelShape, num_active_params

# --- 9.1 -------------------------------------------------------------------------------------------------------------

SMALL = Machine(100.0, 1000.0)
H100 = Machine(3.35e12, 989.4e12)
_SMALL = "a machine of 100 bytes/s and 1,000 FLOP/s"
_H100 = "an H100: 3.35e12 bytes/s and 989.4e12 FLOP/s"

ATTAINABLE = Grader(
    cases=[
        formula(f"intensity 5.0; {_SMALL}", [5.0, SMALL], 500.0),
        formula(f"intensity 50.0; {_SMALL}", [50.0, SMALL], 1000.0),
        formula(f"intensity 10.0, where both run out at once; {_SMALL}", [10.0, SMALL], 1000.0),
        formula(f"intensity 0.05; {_SMALL}", [0.05, SMALL], 5.0),
        formula(f"intensity 1.0; {_H100}", [1.0, H100], 3.35e12),
    ],
    mutants=[
        Mutant(
            lambda i, m: i * m.bandwidth_bytes_per_s,
            "You have the slope but not the roof: however many operations a byte brings, the machine does not compute"
            " faster than flops_per_s.",
        ),
        Mutant(
            lambda i, m: m.flops_per_s,
            "You have the roof but not the slope: while a byte brings few operations, the arithmetic waits for memory.",
        ),
        Mutant(
            lambda i, m: max(i * m.bandwidth_bytes_per_s, m.flops_per_s),
            "You take the larger of the two limits. Both hold at once, so the smaller one decides.",
        ),
        Mutant(
            lambda i, m: min(m.bandwidth_bytes_per_s / i, m.flops_per_s),
            "You divide the bandwidth by the intensity. More operations per byte make more of each byte that arrives:"
            " bytes per second times FLOP per byte is FLOP per second.",
        ),
        Mutant(
            lambda i, m: m.flops_per_s if i > m.bandwidth_bytes_per_s / m.flops_per_s else i * m.bandwidth_bytes_per_s,
            "Your ridge point is upside down: it is flops_per_s / bandwidth_bytes_per_s, in FLOP per byte, as the"
            " intensity is.",
        ),
        Mutant(
            lambda i, m: min(i * m.bandwidth_bytes_per_s, m.flops_per_s) / m.flops_per_s,
            "That is the share of the peak. Asked for is the rate itself, in FLOP per second.",
        ),
    ],
    alternatives=[
        lambda i, m: i * m.bandwidth_bytes_per_s if i < m.ridge_point else m.flops_per_s,
        lambda i, m: 1 / max(1 / m.flops_per_s, 1 / (i * m.bandwidth_bytes_per_s)),
    ],
)

# --- 9.2 and 9.3: sizes all different, so that none can stand for another -------------------------------------------

TOY = ModelShape(
    vocab_size=97,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=512,
)
LLAMA_3_8B = ModelShape(128256, 4096, 14336, 32, 32, 8, 128, 8192)
_TOY = "3 layers, hidden 24, MLP 40, 6 query and 2 key/value heads of 10, vocabulary 97"
_8B = "Llama-3-8B"


def _flops_by_hand(shape: ModelShape, batch: int, new_tokens: int, context: int) -> int:
    """Every product of the pass, counted token by token."""
    q, kv = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    products = 0
    for position in range(context + 1, context + new_tokens + 1):
        for _ in range(shape.num_hidden_layers):
            products += shape.hidden_size * (q + 2 * kv + q) + 3 * shape.hidden_size * shape.intermediate_size
            products += 2 * shape.hidden_size  # two norms
            products += 2 * shape.num_attention_heads * shape.head_dim * position  # scores, and the mix of values
        products += shape.hidden_size  # the last norm
    products += shape.vocab_size * shape.hidden_size  # the head, once
    return 2 * batch * products


def _work(given: str, shape: ModelShape, *sizes: int) -> Any:
    batch, new_tokens, context = sizes
    words = f"{given}; batch {batch}, new_tokens {new_tokens}, context {context}"
    return formula(words, [shape, *sizes], _flops_by_hand(shape, *sizes))


def _flops(
    *,
    per_weight: int = 2,
    head_rows: Callable[[int], int] = lambda new: 1,
    pairs: Callable[[int, int], int] = lambda new, ctx: new * ctx + new * (new + 1) // 2,
    per_pair: int = 4,
    heads: Callable[[ModelShape], int] = lambda s: s.num_attention_heads,
    layers: Callable[[ModelShape], int] = lambda s: s.num_hidden_layers,
    batches: Callable[[int], int] = lambda b: b,
) -> Callable[..., int]:
    """A count with one part of it done otherwise."""

    def count(s: ModelShape, batch: int, new: int, ctx: int = 0) -> int:
        head = s.vocab_size * s.hidden_size
        weights = per_weight * ((num_active_params(s) - head) * new + head * head_rows(new))
        return batches(batch) * (weights + per_pair * heads(s) * s.head_dim * layers(s) * pairs(new, ctx))

    return count


FLOPS = Grader(
    cases=[
        _work(_TOY, TOY, 1, 1, 0),
        _work(_TOY, TOY, 1, 7, 0),
        _work(_TOY, TOY, 3, 1, 11),
        _work(_TOY, TOY, 2, 5, 6),
        _work(_8B, LLAMA_3_8B, 1, 1, 4095),
    ],
    mutants=[
        Mutant(
            _flops(per_weight=1, per_pair=2),
            "You count products. Each comes with an addition: two operations per weight.",
        ),
        Mutant(
            _flops(head_rows=lambda new: new),
            "You apply the head to every new token. Only the last one's logits are asked for; in a long prompt that is"
            " a fifth of the work of a small model.",
        ),
        Mutant(
            _flops(pairs=lambda new, ctx: new * (new + ctx)),
            "You count the whole square of pairs. The causal mask hides half of the new tokens from each other: token"
            " t of the new ones sees context + t.",
        ),
        Mutant(
            _flops(pairs=lambda new, ctx: new * ctx + new * (new - 1) // 2),
            "A token attends to itself as well: the first new one sees context + 1, not context.",
        ),
        Mutant(
            _flops(pairs=lambda new, ctx: new * (new + 1) // 2),
            "You leave out the tokens in the cache. They are not computed again, but each new token compares with each"
            " of them.",
        ),
        Mutant(
            _flops(per_pair=0),
            "Attention's own products are missing: those of queries with keys, and of weights with values. They are no"
            " weights of the model, so num_active_params does not know them.",
        ),
        Mutant(
            _flops(per_pair=2),
            "Half of attention is missing: a pair costs a product of query and key, and another of its weight and"
            " value, each over head_dim numbers.",
        ),
        Mutant(
            _flops(heads=lambda s: s.num_key_value_heads),
            "You count the key/value heads in attention. They are shared, but every query head compares for itself.",
        ),
        Mutant(
            lambda s, b, n, c=0: (
                _flops(per_pair=0)(s, b, n, c)
                + 4 * b * s.hidden_size * s.num_hidden_layers * (n * c + n * (n + 1) // 2)
            ),
            "You take hidden_size for the width of all heads together. It is num_attention_heads * head_dim, which need"
            " not be the same.",
        ),
        Mutant(
            _flops(layers=lambda s: 1),
            "You count attention for one layer only.",
        ),
        Mutant(
            _flops(batches=lambda b: 1),
            "You leave the batch out. Weights are read once for all sequences, but multiplied with each one's tokens.",
        ),
        Mutant(
            lambda s, b, n, c=0: float(_flops()(s, b, n, c)),
            "The value is right, but it is a float. Operations come in whole numbers: multiply ints, divide with //.",
        ),
        Mutant(
            lambda s, b, n, c=0: _flops()(s, b, n, c) + 2 * b * n * s.vocab_size * s.hidden_size,
            "You count the embedding as a product for every token. A token's row is looked up there: nothing is"
            " multiplied.",
        ),
    ],
    alternatives=[
        lambda s, b, n, c=0: _flops_by_hand(s, b, n, c),
        lambda s, b, n, c=0: (
            sum(
                2 * (num_active_params(s) - s.vocab_size * s.hidden_size)
                + 4 * s.num_attention_heads * s.head_dim * s.num_hidden_layers * (c + t)
                for _ in range(b)
                for t in range(1, n + 1)
            )
            + 2 * b * s.vocab_size * s.hidden_size
        ),
    ],
)


def _bytes_by_hand(shape: ModelShape, batch: int, new: int, ctx: int, per_weight: float, per_kv: float) -> float:
    q, kv = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    layer = (
        shape.hidden_size * (2 * q + 2 * kv) + 3 * shape.hidden_size * shape.intermediate_size + 2 * shape.hidden_size
    )
    weights = shape.num_hidden_layers * layer + shape.hidden_size + shape.vocab_size * shape.hidden_size
    return weights * per_weight + batch * (ctx + new) * shape.num_hidden_layers * 2 * kv * per_kv


def _read(given: str, shape: ModelShape, *sizes: Any) -> Any:
    batch, new, ctx, per_weight, per_kv = sizes
    words = (
        f"{given}; batch {batch}, new_tokens {new}, context {ctx}, bytes_per_weight {per_weight}, bytes_per_kv {per_kv}"
    )
    return formula(words, [shape, *sizes], _bytes_by_hand(shape, *sizes))


def _bytes(
    *,
    weights: Callable[[ModelShape, int, int], float] = lambda s, b, n: num_active_params(s),
    tokens: Callable[[int, int, int], int] = lambda b, n, c: b * (n + c),
    heads: Callable[[ModelShape], int] = lambda s: s.num_key_value_heads,
    both: int = 2,
    layers: Callable[[ModelShape], int] = lambda s: s.num_hidden_layers,
    swap: bool = False,
) -> Callable[..., float]:
    def count(s: ModelShape, b: int, n: int, c: int = 0, per_weight: float = 2.0, per_kv: float = 2.0) -> float:
        if swap:
            per_weight, per_kv = per_kv, per_weight
        return weights(s, b, n) * per_weight + tokens(b, n, c) * both * layers(s) * heads(s) * s.head_dim * per_kv

    return count


BYTES = Grader(
    cases=[
        _read(_TOY, TOY, 1, 1, 0, 2.0, 2.0),
        _read(_TOY, TOY, 3, 1, 11, 2.0, 2.0),
        _read(_TOY, TOY, 2, 5, 6, 4.0, 2.0),
        _read(_TOY, TOY, 4, 1, 8, 0.5, 1.0),
        _read(_8B, LLAMA_3_8B, 32, 1, 4095, 2.0, 2.0),
        formula(
            f"{_TOY}; batch 2, new_tokens 3, and nothing else", [TOY, 2, 3], _bytes_by_hand(TOY, 2, 3, 0, 2.0, 2.0)
        ),
    ],
    mutants=[
        Mutant(
            _bytes(weights=lambda s, b, n: b * num_active_params(s)),
            "You read the weights once per sequence. They are read once per pass, for the whole batch: that is why"
            " batching pays.",
        ),
        Mutant(
            _bytes(weights=lambda s, b, n: n * num_active_params(s)),
            "You read the weights once per token. All tokens of a pass share one read: that is why prefill is cheap.",
        ),
        Mutant(
            _bytes(weights=lambda s, b, n: num_active_params(s) + s.vocab_size * s.hidden_size),
            "You read the whole embedding. Of that table a pass looks up one row per token; num_active_params counts"
            " what is multiplied.",
        ),
        Mutant(
            _bytes(tokens=lambda b, n, c: n + c),
            "You read one sequence's keys and values. Every sequence brings its own: unlike weights, they are shared"
            " by nobody.",
        ),
        Mutant(
            _bytes(tokens=lambda b, n, c: b * c),
            "You leave out the new tokens' keys and values: a token attends to itself too.",
        ),
        Mutant(
            _bytes(tokens=lambda b, n, c: b * n),
            "You leave out the cache. Each decode step reads all of it.",
        ),
        Mutant(
            _bytes(tokens=lambda b, n, c: 0),
            "That is the weights alone. Each pass reads keys and values beside them, and at a long context or a large"
            " batch these are the greater part.",
        ),
        Mutant(
            _bytes(heads=lambda s: s.num_attention_heads),
            "You count the query heads. Only key/value heads are in the cache.",
        ),
        Mutant(_bytes(both=1), "Half of the cache is missing: keys and values."),
        Mutant(_bytes(layers=lambda s: 1), "That is the cache of one layer: each layer has its own."),
        Mutant(
            _bytes(swap=True),
            "You have taken bytes_per_weight for the cache and bytes_per_kv for the weights. They differ as soon as one"
            " of the two is quantized.",
        ),
        Mutant(
            lambda s, b, n, c=0, w=2.0, k=2.0: _bytes()(s, b, n, c, 2.0, 2.0),
            "You take 2 bytes per number. How many there are is an argument: quantized weights have 1 or 0.5.",
        ),
    ],
    alternatives=[
        _bytes(),
        lambda s, b, n, c=0, w=2.0, k=2.0: _bytes_by_hand(s, b, n, c, w, k),
    ],
)

# --- 9.4 -------------------------------------------------------------------------------------------------------------

MBU = Grader(
    cases=[
        formula("50 bytes in 2 s, from 100 bytes/s", [50.0, 2.0, 100.0], 0.25),
        formula("540e6 bytes in 0.04 s, from 30e9 bytes/s", [540e6, 0.04, 30e9], 0.45),
        formula("16e9 bytes in 0.008 s, from 3.35e12 bytes/s", [16e9, 0.008, 3.35e12], 2e12 / 3.35e12),
    ],
    mutants=[
        Mutant(
            lambda b, s, w: s / b * w,
            "Upside down: you give how many times longer the pass took than it had to. The share is its inverse.",
        ),
        Mutant(lambda b, s, w: b / s, "Those are the bytes per second that were reached: divide by the bandwidth."),
        Mutant(
            lambda b, s, w: 100 * b / s / w,
            "That is in percent. A share of all is 1.0; write it as a percentage when you print it.",
        ),
        Mutant(lambda b, s, w: b / w, "Those are the seconds that it takes at least: divide by those that it took."),
        Mutant(
            lambda b, s, w: b * s / w,
            "You multiply by the seconds. A pass that takes longer reads fewer bytes per second: divide.",
        ),
    ],
    alternatives=[lambda b, s, w: (b / w) / s, lambda b, s, w: (1 / s) / (w / b)],
)

# --- 9.5 -------------------------------------------------------------------------------------------------------------


def _turns(
    s: ModelShape,
    context: int,
    m: Machine,
    per_weight: float = 2.0,
    per_kv: float = 2.0,
    *,
    ridge: Callable[[Machine], float] = lambda m: m.flops_per_s / m.bandwidth_bytes_per_s,
    kv_share: float = 1.0,
    before: int = 1,
    round_up: bool = True,
    attention: bool = True,
) -> int | None:
    flops = _flops_by_hand(s, 1, 1, context - before if attention else 0)
    weights = num_active_params(s) * per_weight
    kv = kv_share * (_bytes_by_hand(s, 1, 1, context - before, per_weight, per_kv) - weights)
    gain = flops - ridge(m) * kv
    if gain <= 0:
        return None
    needed = ridge(m) * weights / gain
    return max(1, -int(-needed // 1) if round_up else int(needed))


SLOW = Machine(100e9, 400e9)  # ridge at 4 FLOP per byte


def _first_batch(shape: ModelShape, context: int, m: Machine, per_weight: float = 2.0, per_kv: float = 2.0) -> int:
    """By trying: one batch after the other. Only for cases in which there is one."""
    batch = 1
    while (
        _flops_by_hand(shape, batch, 1, context - 1) / m.flops_per_s
        < _bytes_by_hand(shape, batch, 1, context - 1, per_weight, per_kv) / m.bandwidth_bytes_per_s
    ):
        batch += 1
    return batch


def _turning(given: str, want: int | None, *arguments: Any) -> Any:
    return formula(given, list(arguments), want)


_SLOW = "100e9 bytes/s and 400e9 FLOP/s"
BATCH = Grader(
    cases=[
        _turning(f"{_8B}; context 1; {_H100}", _first_batch(LLAMA_3_8B, 1, H100), LLAMA_3_8B, 1, H100),
        _turning(f"{_8B}; context 200; {_H100}", _first_batch(LLAMA_3_8B, 200, H100), LLAMA_3_8B, 200, H100),
        _turning(f"{_8B}; context 4096; {_H100}", None, LLAMA_3_8B, 4096, H100),
        _turning(
            f"{_8B}; context 200; {_H100}; bytes_per_weight 0.5",
            _first_batch(LLAMA_3_8B, 200, H100, 0.5, 2.0),
            LLAMA_3_8B,
            200,
            H100,
            0.5,
            2.0,
        ),
        _turning(f"{_TOY}; context 30; {_SLOW}", _first_batch(TOY, 30, SLOW), TOY, 30, SLOW),
        _turning(
            f"{_TOY}; context 3; {_SLOW}; bytes_per_weight 0.5, bytes_per_kv 0.5: alone is enough",
            _first_batch(TOY, 3, SLOW, 0.5, 0.5),
            TOY,
            3,
            SLOW,
            0.5,
            0.5,
        ),
    ],
    mutants=[
        Mutant(
            lambda s, c, m, w=2.0, k=2.0: _turns(s, c, m, w, k, kv_share=0.0),
            "You leave keys and values out of the bytes, so every model gets there. But each sequence brings its own,"
            " and at a long context they alone keep the memory busier than the arithmetic.",
        ),
        Mutant(
            lambda s, c, m, w=2.0, k=2.0: max(1, -int(-m.flops_per_s / m.bandwidth_bytes_per_s * w / 2 // 1)),
            "That is the rule of thumb: ridge point x bytes per weight / 2. It leaves out attention and the cache, and"
            " so says a batch where there is none.",
        ),
        Mutant(
            lambda s, c, m, w=2.0, k=2.0: _turns(s, c, m, w, k, round_up=False),
            "You round down: at that batch memory is still the limit. Round up.",
        ),
        Mutant(
            lambda s, c, m, w=2.0, k=2.0: _turns(s, c, m, w, k, before=0),
            "You count one token too many: with the new one each sequence has `context` tokens, so context - 1 were"
            " there before the step.",
        ),
        Mutant(
            lambda s, c, m, w=2.0, k=2.0: _turns(s, c, m, w, k, attention=False),
            "You leave attention's own operations out of the arithmetic (9.2): with the context they grow too.",
        ),
        Mutant(
            lambda s, c, m, w=2.0, k=2.0: _turns(s, c, m, w, k) or 0,
            "Where no batch is large enough there is no number to give: return None, not 0.",
        ),
        Mutant(
            lambda s, c, m, w=2.0, k=2.0: _turns(s, c, m),
            "You take 2 bytes per number whatever bytes_per_weight and bytes_per_kv say.",
        ),
    ],
    alternatives=[
        _turns,
        lambda s, c, m, w=2.0, k=2.0: _by_lines(s, c, m, w, k),
    ],
)


def _by_lines(s: ModelShape, context: int, m: Machine, per_weight: float, per_kv: float) -> int | None:
    """Two lines over the batch: where does the one of the arithmetic cross that of the memory?"""
    compute = [_flops_by_hand(s, batch, 1, context - 1) / m.flops_per_s for batch in (1, 2)]
    read = [_bytes_by_hand(s, batch, 1, context - 1, per_weight, per_kv) / m.bandwidth_bytes_per_s for batch in (1, 2)]
    slope = (compute[1] - compute[0]) - (read[1] - read[0])
    if slope <= 0:
        return None
    missing = read[0] - compute[0]
    return 1 if missing <= 0 else 1 - int(-missing // slope)


GRADERS = {"9.1": ATTAINABLE, "9.2": FLOPS, "9.3": BYTES, "9.4": MBU, "9.5": BATCH}
