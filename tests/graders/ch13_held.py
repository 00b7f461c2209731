"""13.7: how many slots hold a token, with real requests whose tables are written by hand."""

from collections.abc import Callable, Sequence

from minillm.engine.request import Request
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.sampling_params import SamplingParams

_Written = tuple[int, int, list[int]]  # tokens, of which computed, block table


def _requests(written: Sequence[_Written]) -> list[Request]:
    made = []
    for number, (tokens, computed, table) in enumerate(written):
        ids = tuple(7 * i % 5 for i in range(tokens))  # some of them are equal: a slot is no kind of token
        request = Request(str(number), ids, SamplingParams(max_tokens=9), tokens + 9)
        request.num_computed, request.block_table = computed, list(table)
        made.append(request)
    return made


def _held_case(given: str, written: Sequence[_Written], size: int) -> Case:
    def observe(f: Function) -> Observation:
        requests = _requests(written)
        result = f(requests, size)
        kept = [(len(r.token_ids), r.num_computed, r.block_table) for r in requests] == list(written)
        return {"the result": result, "the requests afterwards": "as they were" if kept else "changed by your code"}

    def want() -> Observation:
        slots = {(table[i // size], i % size) for _, computed, table in written for i in range(computed)}
        return {"the result": len(slots), "the requests afterwards": "as they were"}

    words = "; ".join(
        f"{computed} of {tokens} tokens computed, in blocks {table}" for tokens, computed, table in written
    )
    return Case(f"{given}. block_size = {size}; {words or 'no requests'}", observe, want)


def _by_block(requests: Sequence[Request], block_size: int) -> int:
    """The most that any request has filled of each block."""
    filled: dict[int, int] = {}
    for request in requests:
        for i, block in enumerate(request.block_table):
            here = max(0, min(block_size, request.num_computed - i * block_size))
            filled[block] = max(here, filled.get(block, 0))
    return sum(filled.values())


def _by_slot(requests: Sequence[Request], block_size: int) -> int:
    return len(
        {r.block_table[i // block_size] * block_size + i % block_size for r in requests for i in range(r.num_computed)}
    )


def _blocks(requests: Sequence[Request]) -> list[int]:
    return [block for request in requests for block in request.block_table]


def _full(requests: Sequence[Request], block_size: int) -> list[int]:
    return [block for r in requests for block in r.block_table[: r.num_computed // block_size]]


def _each(count: Callable[[Request, int], int]) -> Function:
    """A sum over the requests, each by itself."""
    return lambda requests, block_size: sum(count(request, block_size) for request in requests)


TOKENS_HELD = Grader(
    cases=[
        _held_case("One request", [(10, 10, [3, 1, 4])], 4),
        _held_case(
            "A prompt that is read in chunks: blocks for its next chunk are there already", [(19, 6, [3, 1, 4, 0])], 4
        ),
        _held_case("Two requests that share their first two blocks", [(13, 12, [3, 1, 4]), (11, 10, [3, 1, 6])], 4),
        _held_case("Two with blocks of their own", [(9, 8, [3, 1]), (4, 3, [2])], 4),
        _held_case("Three that share, one of which has nothing else", [(7, 6, [5, 2]), (5, 5, [5, 0]), (3, 3, [5])], 3),
        _held_case("One with nothing computed", [(5, 0, [])], 4),
        _held_case("Nobody runs", [], 4),
    ],
    mutants=[
        Mutant(
            _each(lambda request, size: request.num_computed),
            "You add up the tokens of all requests. A block that two of them share is there once, and its tokens are"
            " counted twice: the waste would come out too small, or below 0.",
        ),
        Mutant(
            lambda requests, block_size: len(set(_blocks(requests))) * block_size,
            "You count all slots of the blocks. That is what is *reserved*: the last block of a request is partly"
            " empty, and blocks may be there for tokens that are not computed yet.",
        ),
        Mutant(
            _each(lambda request, size: len(request.block_table) * size),
            "You count all slots of all tables. That is what is reserved, and shared blocks more than once.",
        ),
        Mutant(
            _each(lambda request, size: len(request.token_ids)),
            "You count tokens that there are. A token that is not computed yet has no keys and values: num_computed.",
        ),
        Mutant(
            lambda requests, block_size: len(set(_full(requests, block_size))) * block_size,
            "You count full blocks only. The tokens in a request's last block are held as well.",
        ),
        Mutant(
            lambda requests, block_size: max((request.num_computed for request in requests), default=0),
            "You take the longest request for all. Each has tokens of its own behind what it shares.",
        ),
        Mutant(
            lambda requests, block_size: len({i for r in requests for i in r.token_ids[: r.num_computed]}),
            "You count kinds of tokens. A token that occurs twice has two slots.",
        ),
        Mutant(
            lambda requests, block_size: max(request.num_computed for request in requests),
            "You take the longest request for all, and there may be none.",
        ),
        Mutant(
            lambda requests, block_size: len(set(_blocks(requests))),
            "You count blocks. Slots are asked for: how many of each block's block_size hold a token.",
        ),
    ],
    alternatives=[_by_block, _by_slot],
)
