"""13.3 and 13.4: where tokens lie in blocks, and how keys come out of them, checked slot by slot in plain loops."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from graders.common import random, touched
from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

# --- 13.3 ------------------------------------------------------------------------------------------------------------


def _slots_case(table: Sequence[int], start: int, num_tokens: int, size: int) -> Case:
    def observe(f: Function) -> Observation:
        mine = list(table)
        result = f(mine, start, num_tokens, size)
        return {
            "the result": listed(result),
            "the block table afterwards": "as it was" if mine == list(table) else "changed by your code",
        }

    def want() -> Observation:
        slots, block, place = [], start // size, start % size
        for _ in range(num_tokens):
            slots.append(table[block] * size + place)
            block, place = (block, place + 1) if place + 1 < size else (block + 1, 0)
        return {"the result": str(slots), "the block table afterwards": "as it was"}

    given = f"block_table = {list(table)}, start = {start}, num_tokens = {num_tokens}, block_size = {size}"
    return Case(given, observe, want)


def listed(result: Any) -> str:
    """A list of int as text; what else it may be, in words."""
    if isinstance(result, Iterator):
        return f"a {type(result).__name__}, and no list"
    whole = isinstance(result, list) and all(type(each) is int for each in result)
    return str(result) if whole else in_words(result)


def _slots(
    slot: Callable[[Sequence[int], int, int], Any],
    positions: Callable[[int, int], Sequence[int]] = lambda start, num_tokens: range(start, start + num_tokens),
) -> Function:
    """One entry for each position. slot: (block_table, position, block_size)."""

    def slots_of(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> Any:
        return [slot(block_table, i, block_size) for i in positions(start, num_tokens)]

    return slots_of


def _from_start(slot: Callable[[Sequence[int], int, int, int], int]) -> Function:
    """One entry for each position. slot: (block_table, position, start, block_size)."""

    def slots_of(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
        return [slot(block_table, i, start, block_size) for i in range(start, start + num_tokens)]

    return slots_of


def _slot(table: Sequence[int], i: int, size: int) -> int:
    return table[i // size] * size + i % size


def _of_first_block(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    return [block_table[start // block_size] * block_size + i % block_size for i in range(start, start + num_tokens)]


def _onwards(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    first = _slot(block_table, start, block_size)
    return list(range(first, first + num_tokens))


def _walking(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    """All slots of the request, block by block, and a slice of them."""
    slots = [block * block_size + place for block in block_table for place in range(block_size)]
    return slots[start : start + num_tokens]


def _with_divmod(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    places = [divmod(start + i, block_size) for i in range(num_tokens)]
    return [block_size * block_table[which] + place for which, place in places]


def _tensor(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> Tensor:
    positions = torch.arange(start, start + num_tokens)
    return torch.tensor(block_table)[positions // block_size] * block_size + positions % block_size


SLOTS_OF = Grader(
    cases=[
        _slots_case([7, 2, 9], 0, 6, 4),
        _slots_case([7, 2, 9, 5], 6, 4, 4),
        _slots_case([3, 8, 1, 0], 9, 3, 5),
        _slots_case([6, 4], 11, 1, 8),
        _slots_case([2, 5, 3], 1, 2, 1),
        _slots_case([0, 4, 1], 8, 4, 4),
    ],
    mutants=[
        Mutant(
            _slots(lambda table, i, size: i),
            "You return the positions themselves. That is where tokens lie in a cache that has a place of its own for"
            " each request; here the block table says where block i // block_size really is.",
        ),
        Mutant(
            _slots(_slot, lambda start, num_tokens: range(num_tokens)),
            "You begin at position 0. The tokens are those from `start` on: the ones before it are in the cache"
            " already, and you would write over them.",
        ),
        Mutant(
            _of_first_block,
            "You look the block up once, for the first token. The tokens go on in the next block of the table: look it"
            " up for each position.",
        ),
        Mutant(
            _onwards,
            "You count on from the slot of the first token. Where a block ends, the next slot belongs to another block"
            " and, most likely, to another request: look the block up for each position.",
        ),
        Mutant(
            _slots(lambda table, i, size: table[0] * size + i),
            "You take the blocks of a request for neighbours. They are wherever one was free: block i // block_size of"
            " the request is block_table[i // block_size].",
        ),
        Mutant(
            _slots(lambda table, i, size: table[i // size] + i % size),
            "You add the place within the block to the number of the block. Block b begins at slot b * block_size.",
        ),
        Mutant(
            _slots(lambda table, i, size: table[i // size] * size),
            "You return where the block begins. The token's place within it, i % block_size, is still to be added.",
        ),
        Mutant(
            _slots(lambda table, i, size: table[i // size]),
            "You return blocks, and slots are asked for: a block is block_size of them.",
        ),
        Mutant(
            _slots(lambda table, i, size: (table[i // size], i % size)),
            "You return pairs. A slot is one number, counted through all blocks: block * block_size + place.",
        ),
        Mutant(
            _slots(_slot, lambda start, end: range(start, end)),
            "You take num_tokens for the end. It is how many there are: range(start, start + num_tokens).",
        ),
        Mutant(
            _slots(_slot, lambda start, num_tokens: range(start + 1, start + num_tokens + 1)),
            "You are one position too far: the first token is at `start` itself.",
            begins="IndexError",
        ),
        Mutant(
            _slots(lambda table, i, size: table[i % size] * size + i // size),
            "You have exchanged // and %. i // block_size is how many whole blocks lie before the token, and i %"
            " block_size its place in its own.",
            begins="IndexError",
        ),
        Mutant(
            _slots(lambda table, i, size: table[i // size - 1] * size + i % size),
            "You take the block before the right one. Blocks are counted from 0, as positions are: i // block_size.",
        ),
        Mutant(
            _slots(lambda table, i, size: table[int(i / size)] * size + i / size % 1 * size),
            "You compute with fractions. // and % give whole numbers, exactly.",
        ),
        Mutant(
            _from_start(lambda table, i, start, size: table[i // size] * size + (i - start) % size),
            "You count the place within the block from `start`. It is counted from position 0, as the blocks are: i %"
            " block_size.",
        ),
        Mutant(
            _from_start(lambda table, i, start, size: table[(i - start) // size] * size + i % size),
            "You count the blocks from `start`. The table begins with the block of position 0: i // block_size.",
        ),
        Mutant(
            _slots(lambda table, i, size: (table[i // size] - 1) * size + i % size),
            "You count blocks from 1. They are numbered from 0, so that block b begins at slot b * block_size.",
        ),
        Mutant(
            lambda *arguments: tuple(_with_divmod(*arguments)),
            "The numbers are right, and a list is asked for: you return a tuple.",
        ),
        Mutant(
            lambda *arguments: iter(_with_divmod(*arguments)),
            "You return an iterator: it is empty once it has been read. A list is asked for.",
        ),
        Mutant(
            lambda *arguments: (slot for slot in _with_divmod(*arguments)),
            "You return a generator: round brackets, where square ones make a list.",
        ),
        Mutant(
            _tensor,
            "The numbers are right, and a list of int is asked for: .tolist().",
        ),
    ],
    alternatives=[_slots(_slot), _walking, _with_divmod],
)

# --- 13.4 ------------------------------------------------------------------------------------------------------------

_BLOCKS, _HEADS, _DIM = 7, 2, 5


def _gather_case(
    tables: Sequence[Sequence[int]],
    num_tokens: int,
    size: int,
    given: str,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> Case:
    def arguments() -> tuple[Tensor, Tensor]:
        part = random(_BLOCKS, size, _HEADS, _DIM, seed=seed)
        return (40 * part).to(dtype) if dtype == torch.int8 else part, torch.tensor(tables)

    def observe(f: Function) -> Observation:
        part, rows = arguments()
        kept = part.clone(), rows.clone()
        result = f(part, rows, num_tokens)
        observed = result.clone() if isinstance(result, Tensor) else result
        return {"the result": observed, "afterwards": touched(part=(part, kept[0]), tables=(rows, kept[1]))}

    def want() -> Observation:
        part, _ = arguments()
        found = torch.empty(len(tables), _HEADS, num_tokens, _DIM, dtype=part.dtype)
        for request, table in enumerate(tables):
            for token in range(num_tokens):
                found[request, :, token] = part[table[token // size], token % size]
        return {"the result": found, "afterwards": "as they were"}

    words = f"part [{_BLOCKS}, {size}, {_HEADS}, {_DIM}], tables = {[list(t) for t in tables]}, num_tokens = "
    return Case(f"{words}{num_tokens}: {given}", observe, want)


def _by_request(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    rows = [torch.cat([part[block] for block in table.tolist()])[:num_tokens] for table in tables]
    return torch.stack(rows).permute(0, 2, 1, 3)


def _by_slots(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    size = part.shape[1]
    positions = torch.arange(num_tokens)
    slots = tables[:, positions // size] * size + positions % size  # [R, S]
    return part.flatten(0, 1)[slots].transpose(1, 2)


def _whole(part: Tensor, tables: Tensor) -> Tensor:
    """[R, most_blocks * block_size, Hkv, D]."""
    return part[tables].flatten(1, 2)


def _views(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    found = part[tables]
    return found.view(len(tables), part.shape[2], -1, part.shape[3])[:, :, :num_tokens]


def _place_first(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    return part[tables].transpose(1, 2).flatten(1, 2)[:, :num_tokens].transpose(1, 2)


def _mask(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    return _by_request(part, tables.sort(dim=1).values, num_tokens)


def _as_slots(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    slots = tables.repeat_interleave(part.shape[1], dim=1)[:, :num_tokens]
    return part.flatten(0, 1)[slots].transpose(1, 2)


def _first_blocks(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    return part.flatten(0, 1)[:num_tokens].transpose(0, 1).expand(len(tables), -1, -1, -1)


def _cut_blocks(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    return _whole(part, tables[:, :num_tokens]).transpose(1, 2)


def _all_in_one(part: Tensor, tables: Tensor, num_tokens: int) -> Tensor:
    return part[tables.flatten()].flatten(0, 1)[None].transpose(1, 2)


GATHER_BLOCKS = Grader(
    cases=[
        _gather_case([[4, 1, 6]], 8, 3, "one request, whose last block is not full", 41),
        _gather_case([[5, 0, 3], [2, 6, 6], [1, 1, 1]], 7, 3, "three requests, two of them shorter", 42),
        _gather_case([[3, 5], [3, 2]], 8, 4, "two requests that share their first block; all are full", 43),
        _gather_case([[6, 2, 4]], 2, 1, "blocks of one token, and one more of them than is needed", 44),
        _gather_case([[2], [5]], 1, 4, "one token each", 45),
        _gather_case([[3, 0], [6, 2]], 5, 3, "codes of 8 bits (int8)", 46, torch.int8),
    ],
    mutants=[
        Mutant(
            lambda part, tables, num_tokens: _whole(part, tables).transpose(1, 2),
            "You leave the end of the last block in: slots that hold nothing, or what somebody left there. Cut the"
            " axis of tokens to num_tokens, when blocks and places have become one.",
        ),
        Mutant(
            _cut_blocks,
            "You cut the tables to num_tokens, and their entries are blocks. Gather first, and cut the tokens.",
        ),
        Mutant(
            lambda part, tables, num_tokens: _whole(part, tables)[:, -num_tokens:].transpose(1, 2),
            "You keep the last num_tokens slots. It is the first that hold tokens; what is too much is at the end.",
        ),
        Mutant(
            lambda part, tables, num_tokens: _whole(part, tables)[:, :num_tokens],
            "The tokens stand before the heads. Attention wants [R, Hkv, S, D]: transpose the two axes.",
        ),
        Mutant(
            _views,
            "You view tokens as heads. A view does not move numbers: it cuts the same row at other places, and heads"
            " and tokens are mixed. Put tokens into one axis first, and transpose it with the heads.",
        ),
        Mutant(
            _place_first,
            "The tokens come in the wrong order: first those at place 0 of every block, then those at place 1. A"
            " block's tokens stay together: [R, most_blocks, block_size, ...] flattens in that order by itself.",
        ),
        Mutant(
            _mask,
            "You take the blocks in the order of their numbers. Their order is the table's: it is the order of the"
            " tokens.",
        ),
        Mutant(
            _as_slots,
            "You use numbers of blocks as numbers of slots. Index the blocks, part[tables], or make slots of them:"
            " block * block_size + place.",
        ),
        Mutant(
            _first_blocks,
            "You take the first slots of the cache, whoever they belong to. Where a request's tokens lie, its table"
            " says.",
        ),
        Mutant(
            lambda part, tables, num_tokens: _by_request(part, tables[:1].expand_as(tables), num_tokens),
            "Every request gets the keys of the first one: use each row of the tables.",
        ),
        Mutant(
            lambda part, tables, num_tokens: _by_request(part, tables, num_tokens)[:1],
            "Only the first request's keys are returned. One row for each: [R, Hkv, S, D].",
        ),
        Mutant(
            _all_in_one,
            "You put all requests into one row. Each has a row of its own, or one would attend to another's keys:"
            " [R, Hkv, S, D].",
        ),
        Mutant(
            lambda part, tables, num_tokens: _whole(part, tables)[:, :num_tokens].transpose(2, 3),
            "You transpose heads with what is in a head. Tokens and heads change places: axes 1 and 2.",
        ),
        Mutant(
            lambda part, tables, num_tokens: _whole(part, tables)[:, :num_tokens].transpose(0, 1),
            "You transpose requests and tokens. Tokens and heads change places: axes 1 and 2.",
        ),
        Mutant(
            lambda part, tables, num_tokens: _by_request(part, tables, num_tokens).float(),
            "You make float32 of whatever comes. Codes of 8 bits stay int8: what they stand for is somebody else's"
            " affair, and four times as many bytes would be moved.",
        ),
        Mutant(
            lambda part, tables, num_tokens: part.index_select(0, tables),
            "index_select takes a row of numbers, and tables has several: tables.flatten() first, or part[tables].",
            begins="IndexError: index_select()",
        ),
        Mutant(
            lambda part, tables, num_tokens: torch.gather(part, 0, tables),
            "torch.gather picks single numbers, with an index as large as the result. Whole blocks are picked by"
            " part[tables].",
            begins="RuntimeError: Index tensor must have the same number of dimensions",
        ),
        Mutant(
            lambda part, tables, num_tokens: part[tables].transpose(2, 3),
            "The tokens are still in their blocks, two axes instead of one: flatten most_blocks and block_size into"
            " one axis of tokens.",
        ),
    ],
    alternatives=[
        _by_request,
        _by_slots,
        lambda part, tables, num_tokens: _whole(part, tables).transpose(1, 2)[:, :, :num_tokens].contiguous(),
    ],
)
