"""4.4 and 4.5: pairs counted one by one, and the knee found by trying every length, in fractions."""

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from itertools import count

import jaxtyping

from graders.ch09 import LLAMA_3_8B, TOY
from graders.common import formula
from minillm.attention import causal_mask
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.machine.roofline import Machine, Work, bound_by, decode_work, prefill_work
from minillm.machine.shape import ModelShape

# --- 4.4 -------------------------------------------------------------------------------------------------------------


def _counted(new_tokens: int, context: int) -> int:
    """The pairs, one by one; for numbers too large for that, row by row."""
    if new_tokens * (context + new_tokens) < 1000:
        return sum(key <= context + query for query in range(new_tokens) for key in range(context + new_tokens))
    return sum(context + query + 1 for query in range(new_tokens))


def _pairs_case(given: str, new_tokens: int, context: int | None = None) -> Case:
    arguments = [new_tokens] if context is None else [new_tokens, context]
    sizes = f"new_tokens = {new_tokens:,}" + ("" if context is None else f", context = {context:,}")
    return formula(f"{sizes}: {given}", arguments, _counted(new_tokens, context or 0))


VISIBLE_PAIRS = Grader(
    cases=[
        _pairs_case("a prompt on an empty cache", 5),
        _pairs_case("a chunk behind cached tokens", 3, 4),
        _pairs_case("a decode step", 1, 9),
        _pairs_case("the first token of all", 1, 0),
        _pairs_case("a long chunk behind a short one", 6, 2),
        _pairs_case("a long prompt", 5000, 0),
        _pairs_case("the second half of a prompt", 4000, 4000),
        _pairs_case("no mask has room for these, and no float is exact any more", 3, 2**53 + 1),
    ],
    mutants=[
        Mutant(
            lambda n, context=0: n * (context + n),
            "That is the whole rectangle, queries by keys, as if there were no mask. A token does not look at those"
            " after it: of the n x n square of the new tokens, only the lower triangle is computed.",
        ),
        Mutant(
            lambda n, context=0: n * context + n * (n - 1) // 2,
            "Your tokens do not see themselves. The diagonal counts: the t-th new token sees t of the new ones, itself"
            " included.",
        ),
        Mutant(
            lambda n, context=0: n * (n + 1) // 2,
            "You have the triangle of the new tokens and not the rectangle beside it: each of them also looks at all"
            " cached ones.",
        ),
        Mutant(
            lambda n, context=0: n * context,
            "You have the rectangle, new tokens by cached ones, and not the triangle: the new tokens also look at each"
            " other and at themselves.",
        ),
        Mutant(
            lambda n, context=0: (context + n) * (context + n + 1) // 2,
            "That is the triangle of the whole text. The cached tokens' queries were asked when they were computed, and"
            " nobody asks them again: only the last new_tokens rows of the triangle count.",
        ),
        Mutant(
            lambda n, context=0: context + n * (n + 1) // 2,
            "You count the cached tokens once. Each of the new tokens looks at all of them: new_tokens x context.",
        ),
        Mutant(
            lambda n, context=0: n * context + n * n // 2,
            "n x n / 2 is the triangle only roughly. 1 + 2 + ... + n is n x (n + 1) / 2.",
        ),
        Mutant(
            lambda n, context=0: n * (context + (n + 1) // 2),
            "You halve n + 1 and round before you multiply, so that for an even n half a pair is lost in each row."
            " Multiply first: n * (n + 1) is even, always.",
        ),
        Mutant(
            lambda n, context=0: n * context + n // 2 * (n + 1),
            "You halve n and round before you multiply: for an odd n, half a row is lost. Multiply first: n * (n + 1)"
            " is even, always.",
        ),
        Mutant(
            lambda n, context=0: n * (context - n) + n * (n + 1) // 2,
            "You take the new tokens for a part of `context`. They are not: context counts those that were cached"
            " before, and the whole text has context + new_tokens.",
        ),
        Mutant(
            lambda n, context=0: int(n * context + n * (n + 1) / 2),
            "With / the sum becomes a float, and int() does not bring back what that has lost: from 2**53 on, a float"
            " no longer holds every whole number. Divide with //.",
        ),
        Mutant(
            lambda n, context=0: int(causal_mask(n, context + n).sum()),
            "You make the mask and count in it. The number is right as long as the mask fits into memory; the formula"
            " needs no mask, and has no such limit.",
            begins="RuntimeError",
        ),
        Mutant(
            lambda n, context=0: n * context + n * (n + 1) / 2,
            "The number is right, and it is a float. Pairs are counted: divide with //.",
        ),
        Mutant(
            lambda n, context=0: context + n,
            "That is what the *last* new token sees. Add up what all of them see.",
        ),
        Mutant(
            lambda n, context=0: n * context + (n + 1) * (n + 2) // 2,
            "One token too many: the triangle has new_tokens rows, 1 + 2 + ... + new_tokens. (range(n) ends at n - 1,"
            " and that is as it should be.)",
        ),
    ],
    alternatives=[
        lambda n, context=0: sum(range(context + 1, context + n + 1)),
        lambda n, context=0: (context + n) * (context + n + 1) // 2 - context * (context + 1) // 2,
        lambda n, context=0: n * (2 * context + n + 1) // 2,
        lambda n, context=0: n * context + int(n * (n + 1) / 2),
    ],
)

# --- 4.5 -------------------------------------------------------------------------------------------------------------

_TOY = "3 layers, hidden 24, MLP 40, 6 query and 2 key/value heads of 10, vocabulary 97"


def _knee(shape: ModelShape, machine: Machine, bytes_per_weight: float, bytes_per_kv: float, first: int = 1) -> int:
    """One length after the other, in fractions, from one on that is known to be too short (or from 1)."""
    ridge = Fraction(machine.flops_per_s) / Fraction(machine.bandwidth_bytes_per_s)
    for tokens in count(first):
        work = prefill_work(shape, tokens, bytes_per_weight, bytes_per_kv)
        if Fraction(work.flops) / Fraction(work.bytes) >= ridge:
            assert tokens > first or first == 1, "the search has begun too far out"
            return tokens
    raise AssertionError


def _exactly_at(tokens: int, *itemsizes: float) -> Machine:
    """A machine at whose ridge point a prompt of so many tokens lies: both speeds are used up in exactly a second."""
    work = prefill_work(TOY, tokens, *itemsizes)
    return Machine(work.bytes, work.flops)


def _knee_case(given: str, shape: ModelShape, machine: Machine, *itemsizes: float, first: int = 1) -> Case:
    numbers = f"{machine.bandwidth_bytes_per_s:g} bytes/s, {machine.flops_per_s:g} FLOP/s"
    bytes_each = "" if not itemsizes else f", bytes_per_weight = {itemsizes[0]}, bytes_per_kv = {itemsizes[1]}"
    want = _knee(shape, machine, *(itemsizes or (2.0, 2.0)), first=first)
    return formula(f"{given}; {numbers}{bytes_each}", [shape, machine, *itemsizes], want)


def _unchecked(case: Case) -> Case:
    """Without the test run's check of every call's types: thousands of lengths, one by one, are a right answer too.

    To 4,406 tokens they take 0.9 s with the checks and 0.06 s without.
    """

    def observe(f: Function) -> Observation:
        before = jaxtyping.config.jaxtyping_disable
        jaxtyping.config.update("jaxtyping_disable", True)
        try:
            return case.observe(f)
        finally:
            jaxtyping.config.update("jaxtyping_disable", before)

    return Case(case.given, observe, case.want)


def _search(
    enough: Callable[[Work, Machine], bool],
    work: Callable[[ModelShape, int, float, float], Work] = prefill_work,
    first: int = 1,
) -> Function:
    """The first length that is enough, by halves (all mutants are run when one is looked for), and what goes wrong."""

    def knee(shape: ModelShape, machine: Machine, w: float = 2.0, kv: float = 2.0) -> int:
        def is_enough(tokens: int) -> bool:
            return enough(work(shape, tokens, w, kv), machine)

        return first if is_enough(first) else bisect_left(range(1 << 15), True, lo=first, key=is_enough)

    return knee


def _by_time(work: Work, machine: Machine) -> bool:
    return work.flops / machine.flops_per_s >= work.bytes / machine.bandwidth_bytes_per_s


def _by_intensity(work: Work, machine: Machine) -> bool:
    return work.intensity >= machine.ridge_point


def _doubling(shape: ModelShape, machine: Machine, w: float = 2.0, kv: float = 2.0) -> int:
    tokens = 1
    while not _by_time(prefill_work(shape, tokens, w, kv), machine):
        tokens *= 2
    return tokens


def _one_by_one(shape: ModelShape, machine: Machine, w: float = 2.0, kv: float = 2.0) -> int:
    tokens = 1
    while bound_by(prefill_work(shape, tokens, w, kv), machine) == "memory":
        tokens += 1
    return tokens


def _up_to_4096(shape: ModelShape, machine: Machine, w: float = 2.0, kv: float = 2.0) -> int:
    return min(4096, _search(_by_time)(shape, machine, w, kv))


def _nothing_beyond_4096(shape: ModelShape, machine: Machine, w: float = 2.0, kv: float = 2.0) -> int | None:
    found = _search(_by_time)(shape, machine, w, kv)
    return found if found <= 4096 else None


def _halving(shape: ModelShape, machine: Machine, w: float = 2.0, kv: float = 2.0) -> int:
    below, enough = 0, 1 << 20
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if _by_time(prefill_work(shape, middle, w, kv), machine) else (middle, enough)
    return enough


def _one_less(shape: ModelShape, machine: Machine, w: float = 2.0, kv: float = 2.0) -> int:
    return max(1, _search(_by_time)(shape, machine, w, kv) - 1)


KNEE = Grader(
    cases=[
        _knee_case(_TOY, TOY, Machine(100.0, 1000.0)),
        _knee_case("Llama-3-8B on an H100, in bfloat16", LLAMA_3_8B, Machine(3.35e12, 989.4e12)),
        _knee_case("the toy, where 7 tokens are exactly at the ridge", TOY, _exactly_at(7)),
        _knee_case("the same in float32", TOY, _exactly_at(7, 4.0, 4.0), 4.0, 4.0),
        _knee_case("the toy in 8 bit, with a cache in 16", TOY, Machine(64.0, 3000.0), 1.0, 2.0),
        _knee_case("the toy on a machine that computes slowly: every prompt", TOY, Machine(1000.0, 10.0)),
        _knee_case("the toy in 16 bit, with a cache in 32", TOY, Machine(100.0, 3000.0), 2.0, 4.0),
        _knee_case("the toy in 16 bit, with a cache in 8", TOY, Machine(50.0, 5000.0), 2.0, 1.0),
        _unchecked(
            _knee_case("the toy on a machine with a very slow memory", TOY, Machine(100.0, 650_000.0), first=4_200)
        ),
    ],
    mutants=[
        Mutant(
            lambda s, m, w=2.0, kv=2.0: -int(-m.ridge_point // 1),
            "That is the ridge point. In 16 bit it comes near, because a token brings two operations for each weight"
            " of two bytes; but the bytes per weight decide, the head is read and used for one token only, and the keys"
            " and values are read as well.",
        ),
        Mutant(
            lambda s, m, w=2.0, kv=2.0: max(1, -int(-m.ridge_point * w / 2 // 1)),
            "You count two operations per token and weight, and nothing else. The head is read and used for one token"
            " only, and attention has operations and bytes of its own: let prefill_work count.",
        ),
        Mutant(
            _search(lambda work, m: work.flops / m.flops_per_s > work.bytes / m.bandwidth_bytes_per_s),
            "At the ridge point itself both times are equal, and your prompt is one token too long: at least, not"
            " more than.",
        ),
        Mutant(
            _one_less,
            "One token too few: that is the longest prompt that is still limited by memory.",
        ),
        Mutant(
            _search(lambda work, m: not _by_time(work, m)),
            "The comparison is the wrong way round: you look for the first prompt that is limited by memory. A short"
            " prompt always is (or never, on a machine that computes slowly).",
        ),
        Mutant(
            _doubling,
            "You double the length and return the first that is enough. The smallest lies somewhere between it and its"
            " half.",
        ),
        Mutant(
            _search(_by_time, lambda s, n, w, kv: prefill_work(s, n)),
            "You leave bytes_per_weight and bytes_per_kv out, so that every model is in 16 bit. A float32 model reads"
            " twice the bytes for the same operations, and its knee lies further out.",
        ),
        Mutant(
            _search(_by_time, lambda s, n, w, kv: prefill_work(s, n, w)),
            "You leave bytes_per_kv out, and so every cache is in 16 bit. In another format the keys and values are"
            " more or fewer bytes to read, and the knee moves.",
        ),
        Mutant(
            _search(_by_time, lambda s, n, w, kv: prefill_work(s, n, kv, w)),
            "The two sizes are swapped: prefill_work takes bytes_per_weight first, and then bytes_per_kv.",
        ),
        Mutant(
            _search(_by_time, first=0),
            "You begin with a prompt of no tokens at all. On a machine that computes slowly every prompt is limited by"
            " arithmetic, and the shortest that there is has 1 token.",
        ),
        Mutant(
            _nothing_beyond_4096,
            "Your search ends before it has found one, and nothing comes back. The knee may lie anywhere: go on until"
            " a length is enough (`while`).",
        ),
        Mutant(
            _up_to_4096,
            "Your search ends at a largest length that nobody has set. On a machine with much arithmetic and a slow"
            " memory the knee lies further out: go on until a length is enough.",
        ),
        Mutant(
            _search(_by_time, lambda s, n, w, kv: prefill_work(s, n, w, w)),
            "You take bytes_per_weight for the cache as well. A cache may be kept in another format than the weights.",
        ),
        Mutant(
            _search(lambda work, m: work.intensity >= m.bandwidth_bytes_per_s / m.flops_per_s),
            "Your ridge point is upside down: it is FLOP/s by bytes/s, in FLOP per byte, as an intensity is.",
        ),
        Mutant(
            _search(_by_time, lambda s, n, w, kv: decode_work(s, n, 1, w, kv)),
            "You compute a batch of decode steps. A prompt's tokens belong to one sequence: they share its keys and"
            " values, attend to each other, and need the head once.",
        ),
        Mutant(
            lambda s, m, w=2.0, kv=2.0: float(_search(_by_time)(s, m, w, kv)),
            "The number is right, and it is a float: tokens are counted, so return an int.",
        ),
    ],
    alternatives=[_search(_by_time), _search(_by_intensity), _halving, _one_by_one],
)
