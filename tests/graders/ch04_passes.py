"""4.2: a real cache, and in the place of the layers a stand-in that writes down its passes."""

from collections.abc import Callable, Iterator
from copy import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from graders.ch04_model import CONFIG, whole
from graders.common import UNTOUCHED, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache
from minillm.model import Llama

# --- 4.2 -------------------------------------------------------------------------------------------------------------

_BATCH = 2


class _Layers(Llama):
    """A model whose layers are a stand-in: it does to a cache what a model does, and writes down each pass.

    A token's key is a vector of its own plus its position; its hidden state is the sum of the keys that it sees.
    """

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.table = whole(CONFIG.vocab_size, CONFIG.head_dim, seed=1, most=9)  # [V, D]
        self.passes: list[tuple[list[int], int]] = []  # the shape of the ids, the first position
        self.times_asked_for_logits = 0

    def forward(self, ids: Tensor, cache: Any) -> Tensor:
        positions = cache.positions(ids.shape[1])  # [B, T]
        self.passes.append((list(ids.shape), int(positions[0, 0]) if positions.numel() else cache.length))
        key = self.table[ids] + positions[: ids.shape[0], :, None]  # [B, T, D]
        heads = key[:, None].expand(-1, CONFIG.num_key_value_heads, -1, -1)  # [B, Hkv, T, D]
        keys = key
        for layer in range(CONFIG.num_hidden_layers):
            keys, _ = cache.append(layer, heads + layer, -heads)  # [B, Hkv, S, D]
        return keys[:, 0].cumsum(dim=1)[:, keys.shape[2] - ids.shape[1] :]  # [B, T, D]

    def logits(self, hidden: Tensor) -> Tensor:
        self.times_asked_for_logits += 1
        return hidden @ self.table.mT  # [..., V]


@cache
def _made_once() -> _Layers:
    return _Layers()


def _layers() -> _Layers:
    """A new one, with the weights of all others: to make those takes longer than a case."""
    model = copy(_made_once())
    model.passes, model.times_asked_for_logits = [], 0
    return model


def _ids(held: int, new: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * held + new)
    return torch.randint(0, CONFIG.vocab_size, (_BATCH, held + new), generator=generator)  # [B, held + new]


def _shared(ids: Tensor) -> Tensor:
    """The keys of a whole text, token by token: [B, S, D]."""
    table = _made_once().table
    rows = [[table[token] + place for place, token in enumerate(row)] for row in ids.tolist()]
    return torch.stack([torch.stack(row) for row in rows])


def _passes(held: int, new: int, chunk_size: int) -> Iterator[tuple[int, int]]:
    """(tokens, first position) of each pass."""
    done = 0
    while done < new:
        size = min(chunk_size, new - done)
        yield size, held + done
        done += size


def _told(passes: list[tuple[list[int], int]]) -> str:
    return ", ".join(f"{shape} at {first}" for shape, first in passes) or "none"


def _chunks_case(given: str, *, held: int, new: int, chunk_size: int, room: int = 23) -> Case:
    def observe(f: Function) -> Observation:
        model, ids = _layers(), _ids(held, new)
        cache = KVCache(CONFIG, room, _BATCH)
        if held:
            model(ids[:, :held], cache)
            cache.advance(held)
        cache.keys[:, :, :, held:] = -99  # scrap, which the caller must not see
        model.passes.clear()
        tokens = ids[:, held:].clone()
        result = f(model, tokens, cache, chunk_size)
        return {
            "the passes (shape of the ids, and where they stand)": _told(model.passes),
            "the cache's length afterwards": cache.length,
            "the keys that the cache then holds": cache.keys[-1, :, 0, : cache.length].clone(),
            "the result": result,
            "calls of model.logits": model.times_asked_for_logits,
            "tokens afterwards": touched(tokens=(tokens, ids[:, held:])),
        }

    def want() -> Observation:
        passes = list(_passes(held, new, chunk_size))
        keys = _shared(_ids(held, new)) + CONFIG.num_hidden_layers - 1  # [B, S, D], those of the last layer
        last = passes[-1][0]
        sums = torch.stack([keys[:, : end + 1].sum(dim=1) for end in range(held + new)], dim=1)  # [B, S, D]
        return {
            "the passes (shape of the ids, and where they stand)": _told(
                [([_BATCH, size], first) for size, first in passes]
            ),
            "the cache's length afterwards": held + new,
            "the keys that the cache then holds": keys,
            "the result": sums[:, -last:],
            "calls of model.logits": 0,
            "tokens afterwards": UNTOUCHED,
        }

    sizes = f"tokens [{_BATCH}, {new}], chunk_size = {chunk_size}"
    return Case(f"{sizes}, a cache that holds {held} of {room}: {given}", observe, want)


def _loop(
    split: Callable[[Tensor, int, KVCache], Any] = lambda tokens, size, cache: tokens.split(size, dim=1),
    by: Callable[[Tensor, int, Tensor], int] = lambda chunk, size, tokens: chunk.shape[1],
    result: Callable[[list[Tensor]], Any] = lambda hidden: hidden[-1],
    early: bool = False,
) -> Function:
    """The right answer in four lines, and what goes wrong with each of its decisions."""

    def forward_in_chunks(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
        hidden = []
        for chunk in split(tokens, chunk_size, cache):
            if early:
                cache.advance(by(chunk, chunk_size, tokens))
            hidden.append(model(chunk, cache))
            if not early:
                cache.advance(by(chunk, chunk_size, tokens))
        return result(hidden)

    return forward_in_chunks


def _advance_at_the_end(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Tensor:
    hidden = [model(chunk, cache) for chunk in tokens.split(chunk_size, dim=1)]
    cache.advance(tokens.shape[1])
    return hidden[-1]


def _advance_between(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Tensor:
    *earlier, last = tokens.split(chunk_size, dim=1)
    for chunk in earlier:
        model(chunk, cache)
        cache.advance(chunk.shape[1])
    return model(last, cache)


def _from_a_fresh_start(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Tensor:
    cache.truncate(0)
    return _loop()(model, tokens, cache, chunk_size)


def _cache_length_as_index(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
    hidden = None
    while cache.length < tokens.shape[1]:
        chunk = tokens[:, cache.length : cache.length + chunk_size]
        hidden = model(chunk, cache)
        cache.advance(chunk.shape[1])
    return hidden


def _whole_chunks(tokens: Tensor, size: int, cache: KVCache) -> list[Tensor]:
    full = max(1, tokens.shape[1] // size)
    return [tokens[:, i * size : (i + 1) * size] for i in range(full)]


def _one_too_many(tokens: Tensor, size: int, cache: KVCache) -> list[Tensor]:
    return [tokens[:, start : start + size] for start in range(0, tokens.shape[1] + 1, size)]


def _prefixes(tokens: Tensor, size: int, cache: KVCache) -> list[Tensor]:
    return [tokens[:, : start + size] for start in range(0, tokens.shape[1], size)]


def _prefixes_counted_once(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
    hidden, num_tokens = None, tokens.shape[1]
    for start in range(0, num_tokens, chunk_size):
        end = min(start + chunk_size, num_tokens)
        hidden = model(tokens[:, :end], cache)
        cache.advance(end - start)
    return hidden


def _sequence_by_sequence(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
    hidden = None
    for row in tokens:
        hidden = _loop()(model, row[None], cache, chunk_size)
    return hidden


def _setting_the_length(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
    hidden = None
    for chunk in tokens.split(chunk_size, dim=1):
        hidden = model(chunk, cache)
        cache.length += chunk.shape[1]  # pyright: ignore[reportAttributeAccessIssue]
    return hidden


def _length_to_zero(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
    cache.length = 0  # pyright: ignore[reportAttributeAccessIssue]
    return _loop()(model, tokens, cache, chunk_size)


def _logits_of_every_chunk(model: Any, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
    hidden = None
    for chunk in tokens.split(chunk_size, dim=1):
        hidden = model(chunk, cache)
        model.logits(hidden[:, -1])
        cache.advance(chunk.shape[1])
    return hidden


def _evened_out(tokens: Tensor, size: int, cache: KVCache) -> Any:
    return tokens.chunk(-(-tokens.shape[1] // size), dim=1)


def _even(tokens: Tensor, size: int, cache: KVCache) -> Any:
    return tokens.tensor_split(-(-tokens.shape[1] // size), dim=1)


def _small_chunk_first(tokens: Tensor, size: int, cache: KVCache) -> list[Tensor]:
    rest = tokens.shape[1] % size
    first = [tokens[:, :rest]] if rest else []
    return [*first, *tokens[:, rest:].split(size, dim=1)] if tokens.shape[1] > rest else first


def _logits(model: Any, tokens: Tensor, cache: KVCache, chunk_size: int) -> Tensor:
    return model.logits(_loop()(model, tokens, cache, chunk_size))


def _recursive(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Tensor:
    chunk, rest = tokens[:, :chunk_size], tokens[:, chunk_size:]
    hidden = model.forward(chunk, cache)
    cache.advance(hidden.shape[1])
    return _recursive(model, rest, cache, chunk_size) if rest.numel() else hidden


def _by_index(model: nn.Module, tokens: Tensor, cache: KVCache, chunk_size: int) -> Any:
    hidden, start = None, 0
    while start < tokens.shape[1]:
        end = min(start + chunk_size, tokens.shape[1])
        hidden = model(tokens[:, start:end], cache)
        cache.advance(end - start)
        start = end
    return hidden


FORWARD_IN_CHUNKS = Grader(
    cases=[
        _chunks_case("three chunks, the last one shorter", held=0, new=8, chunk_size=3),
        _chunks_case("two whole chunks", held=0, new=8, chunk_size=4),
        _chunks_case("a chunk larger than the prompt", held=0, new=5, chunk_size=9),
        _chunks_case("behind the turns of a chat", held=5, new=7, chunk_size=3),
        _chunks_case("one token at a time", held=0, new=4, chunk_size=1),
        _chunks_case("exactly full afterwards", held=3, new=8, chunk_size=3, room=11),
        _chunks_case("a single token left over", held=0, new=9, chunk_size=4),
    ],
    mutants=[
        Mutant(
            _loop(by=lambda chunk, size, tokens: 0),
            "You do not advance the cache. Each chunk then takes the positions of the first and writes over its keys:"
            " what you get is the last chunk of the prompt, read alone.",
        ),
        Mutant(
            _advance_at_the_end,
            "You advance once, after all chunks. Until then the cache holds nothing of them: each chunk stands at the"
            " positions of the first, sees none before it, and writes over it. Advance after each pass.",
        ),
        Mutant(
            _advance_between,
            "You do not count the last chunk in. The next token would write over its keys and values: advance after"
            " every pass, the last too.",
        ),
        Mutant(
            _loop(early=True),
            "You advance before the pass. The chunk then stands behind a hole as wide as itself, in which there are no"
            " keys but scrap, and looks at it.",
        ),
        Mutant(
            _loop(by=lambda chunk, size, tokens: size),
            "You advance by chunk_size after every pass. The last chunk may be shorter: the cache then counts tokens"
            " that were never computed. Advance by chunk.shape[1].",
        ),
        Mutant(
            _loop(by=lambda chunk, size, tokens: len(chunk)),
            "len(chunk) is the size of its *first* axis, the number of sequences. Each of them got chunk.shape[1] new"
            " tokens.",
        ),
        Mutant(
            _loop(by=lambda chunk, size, tokens: chunk.numel()),
            "You advance by the tokens of all sequences together. A cache counts per sequence: chunk.shape[1].",
        ),
        Mutant(
            _loop(by=lambda chunk, size, tokens: tokens.shape[1]),
            "You advance by the whole prompt after each pass. Count in what this pass has computed: chunk.shape[1].",
        ),
        Mutant(
            _loop(result=lambda hidden: torch.cat(hidden, dim=1)),
            "You keep the hidden states of all chunks. They are what chunks are there to be rid of: return those of"
            " the last one.",
        ),
        Mutant(
            _loop(result=lambda hidden: hidden[0]),
            "You return the first chunk's hidden states. What follows the prompt is decided by its end: the last"
            " chunk's.",
        ),
        Mutant(
            _loop(result=lambda hidden: hidden[-1][:, -1]),
            "You return one row per sequence, [B, E]. Asked for are all rows of the last chunk, [B, n, E]; to pick one"
            " is the next function's task.",
        ),
        Mutant(
            _loop(result=lambda hidden: hidden[-1][:, -1:]),
            "You return the last row alone, [B, 1, E]. Asked for are all rows of the last chunk, [B, n, E]; to pick one"
            " is the next function's task.",
        ),
        Mutant(
            _logits,
            "You send the rows through the head. Asked for are the hidden states: the head comes afterwards, and for"
            " one row only.",
        ),
        Mutant(
            _loop(split=lambda tokens, size, cache: tokens.chunk(size, dim=1)),
            "`tokens.chunk(n)` makes n chunks, of whatever size. What you want is chunks of one size, as many as it"
            " takes: tokens.split(chunk_size, dim=1).",
        ),
        Mutant(
            _loop(split=lambda tokens, size, cache: tokens.split(size)),
            "You split along the first axis, which is the sequences. The tokens are the second: split(chunk_size,"
            " dim=1).",
        ),
        Mutant(
            _loop(split=_whole_chunks),
            "The tokens left over after the last whole chunk are not computed. The prompt's end is where its question"
            " stands.",
        ),
        Mutant(
            _loop(split=_prefixes),
            "You send everything from the start of the prompt with each chunk. What the cache holds need not, and must"
            " not, be sent again: it would stand there twice.",
        ),
        Mutant(
            _loop(split=lambda tokens, size, cache: [tokens]),
            "You compute the whole prompt in one pass. The result is right; its activations are those that chunk_size"
            " was to keep small.",
        ),
        Mutant(
            _loop(split=_even),
            "Your chunks are of about the same size. Asked for are chunks of exactly chunk_size tokens, with what is"
            " left over in the last one.",
        ),
        Mutant(
            _loop(split=_evened_out),
            "You know how many chunks it takes, and `tokens.chunk(n)` evens the pieces out: of 9 tokens in chunks of at"
            " most 4 it makes 3, 3 and 3, not 4, 4 and 1. `tokens.split(chunk_size, dim=1)` does not.",
        ),
        Mutant(
            _loop(split=_one_too_many),
            "Where the chunks come out even, you send an empty one at the end, and its hidden states are none. The"
            " starts are range(0, T, chunk_size), without T itself.",
        ),
        Mutant(
            _prefixes_counted_once,
            "Your slices all begin at the start of the prompt, tokens[:, :end]. Each pass then computes the earlier"
            " tokens once more, at places where they do not stand: tokens[:, start:end].",
        ),
        Mutant(
            _loop(split=_prefixes, by=lambda chunk, size, tokens: size),
            "Your slices all begin at the start of the prompt: the earlier tokens are computed once more in each pass,"
            " at places where they do not stand. Send tokens[:, start:start + chunk_size], and advance by what that"
            " has: the last one may be shorter.",
        ),
        Mutant(
            _sequence_by_sequence,
            "You send one sequence at a time. The cache has a row for each of them and counts them together, so a pass"
            " takes all sequences: a chunk is [B, n].",
        ),
        Mutant(
            _length_to_zero,
            "You set the cache's length, which is only there to be read. What has been computed is counted in by"
            " cache.advance(n); what the cache held before stays.",
        ),
        Mutant(
            _logits_of_every_chunk,
            "The hidden states are right, and you have asked for logits on the way. Nobody looks at them: the head is"
            " for the prompt's last row, and comes after this function.",
        ),
        Mutant(
            _loop(result=lambda hidden: None),
            "All is computed, and nothing given back. Return the hidden states of the last chunk.",
        ),
        Mutant(
            _loop(split=_small_chunk_first),
            "Your odd chunk comes first. Asked for is the other way: all chunks of chunk_size tokens, and what is left"
            " over at the end.",
        ),
        Mutant(
            _from_a_fresh_start,
            "You clear the cache first. What it holds, a chat's earlier turns for instance, belongs to the text: the"
            " new tokens stand behind it.",
        ),
        Mutant(
            _cache_length_as_index,
            "You use the cache's length to count through the prompt. The two agree only where the cache was empty: on a"
            " warm one you skip the beginning of the prompt.",
        ),
    ],
    alternatives=[_loop(), _recursive, _by_index],
)
