"""4.1, 4.2 and 4.3: a real cache, a stand-in for the layers that writes down its passes, and a real head.

All numbers are small and whole, so that float32 is exact, whatever the order of a sum.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graders.common import UNTOUCHED, touched
from minillm.config import ModelConfig
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache
from minillm.model import Llama

_CONFIG = ModelConfig(
    vocab_size=11,
    hidden_size=6,
    intermediate_size=8,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=64,
)


def _whole(*shape: int, seed: int, most: int = 3) -> Tensor:
    """Whole numbers from -most to most, as float32."""
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).to(torch.float32)


# --- 4.1 -------------------------------------------------------------------------------------------------------------


class _DeviceWatch(TorchFunctionMode):
    """Whether the code within says on which device a tensor is to be. On a CPU alone, the tensor itself cannot tell."""

    said = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        moves = name in ("to", "type_as", "cuda", "cpu") or name.startswith("new_") or name.endswith("_like")
        self.said = self.said or moves or kwargs.get("device") is not None
        return func(*args, **kwargs)


_ITS_DEVICE, _ANY_DEVICE = "on the cache's device", "on PyTorch's default device"


def _positions_case(given: str, *, batch: int, held: int, new: int, room: int = 17) -> Case:
    def observe(f: Function) -> Observation:
        cache = KVCache(_CONFIG, room, batch)
        cache.advance(held)
        with _DeviceWatch() as watch:
            result = f(cache, new)
        return {
            "the result": result,
            "the cache's length afterwards": cache.length,
            "the result is made": _ITS_DEVICE if watch.said else _ANY_DEVICE,
        }

    def want() -> Observation:
        rows = torch.tensor([[held + t for t in range(new)] for _ in range(batch)], dtype=torch.int64)
        return {"the result": rows, "the cache's length afterwards": held, "the result is made": _ITS_DEVICE}

    holds = f"holds {held} of {room} tokens" if held else f"is empty, with room for {room}"
    return Case(f"a cache of {batch} sequences that {holds}; num_tokens = {new}: {given}", observe, want)


def _positions(
    first: Callable[[KVCache], int] = lambda cache: cache.length,
    shape: Callable[[Tensor, KVCache], Tensor] = lambda row, cache: row.expand(cache.batch_size, -1),
    device: Callable[[KVCache], Any] = lambda cache: cache.keys.device,
) -> Function:
    """The right answer, and what goes wrong with it."""

    def positions(self: KVCache, num_tokens: int) -> Tensor:
        return shape(torch.arange(first(self), first(self) + num_tokens, device=device(self)), self)

    return positions


def _up_to_num_tokens(self: KVCache, num_tokens: int) -> Tensor:
    row = torch.arange(min(self.length, num_tokens), num_tokens, device=self.keys.device)
    return row.expand(self.batch_size, -1)


def _whole_text(self: KVCache, num_tokens: int) -> Tensor:
    return torch.arange(self.length + num_tokens, device=self.keys.device).expand(self.batch_size, -1)


def _advancing(self: KVCache, num_tokens: int) -> Tensor:
    result = _positions()(self, num_tokens)
    self.advance(num_tokens)
    return result


def _on_through_the_batch(self: KVCache, num_tokens: int) -> Tensor:
    every = torch.arange(self.batch_size * num_tokens, device=self.keys.device) + self.length
    return every.view(self.batch_size, num_tokens)


def _listed(self: KVCache, num_tokens: int) -> Tensor:
    row = list(range(self.length, self.length + num_tokens))
    return torch.tensor([row] * self.batch_size, device=self.keys.device)


def _summed(self: KVCache, num_tokens: int) -> Tensor:
    ones = torch.ones(self.batch_size, num_tokens, dtype=torch.int64, device=self.keys.device)
    return ones.cumsum(dim=1) + (self.length - 1)


POSITIONS = Grader(
    cases=[
        _positions_case("a chunk behind others", batch=3, held=5, new=4),
        _positions_case("a prompt on an empty cache", batch=2, held=0, new=7),
        _positions_case("a decode step", batch=3, held=6, new=1),
        _positions_case("one sequence", batch=1, held=2, new=5),
        _positions_case("exactly full afterwards", batch=2, held=8, new=9),
    ],
    mutants=[
        Mutant(
            _positions(first=lambda cache: 0),
            "Your positions start at 0 whatever the cache holds. Right for the first chunk, and from the second on"
            " every key says that it stands where another one does. They start at self.length.",
        ),
        Mutant(
            _positions(first=lambda cache: cache.length + 1),
            "You start one too far. The tokens held stand at 0 to self.length - 1, so the next one stands at"
            " self.length.",
        ),
        Mutant(
            _positions(first=lambda cache: max(0, cache.length - 1)),
            "You start at the position of the last token that is held. The next one stands behind it: self.length.",
        ),
        Mutant(
            _up_to_num_tokens,
            "You stop at num_tokens. That is how many tokens there are, not where they end: arange(self.length,"
            " self.length + num_tokens).",
        ),
        Mutant(
            _whole_text,
            "You give the positions of the whole text, the cached tokens' too. Asked for are those of the next"
            " num_tokens alone.",
        ),
        Mutant(
            _positions(shape=lambda row, cache: row),
            "That is one row, [num_tokens]. Each sequence has its own, [B, num_tokens], though they are equal here:"
            " .expand(self.batch_size, num_tokens).",
        ),
        Mutant(
            _positions(shape=lambda row, cache: row[None]),
            "You have the batch axis, and a single row in it. Each of the batch_size sequences has one:"
            " .expand(self.batch_size, num_tokens).",
        ),
        Mutant(
            _positions(shape=lambda row, cache: row[:, None].expand(-1, cache.batch_size)),
            "Rows and columns are swapped: sequences come first, then their tokens, [B, num_tokens].",
        ),
        Mutant(
            _on_through_the_batch,
            "You go on counting from one sequence to the next. Each of them is a text of its own: all have the same"
            " positions.",
        ),
        Mutant(
            _positions(shape=lambda row, cache: row.float().expand(cache.batch_size, -1)),
            "The numbers are right and the tensor is of floats. Positions are counted: leave them whole (int64).",
        ),
        Mutant(
            _positions(device=lambda cache: None),
            "You make the tensor on the default device. With the model on a GPU, its angles would lie in the wrong"
            " memory: device=self.keys.device.",
        ),
        Mutant(
            _advancing,
            "You advance the cache. Nothing has been computed yet: the caller does that when the pass is over.",
        ),
    ],
    alternatives=[
        _positions(),
        _positions(shape=lambda row, cache: row.repeat(cache.batch_size, 1)),
        lambda self, n: (torch.arange(n, device=self.keys.device) + self.length).expand(self.batch_size, n),
        lambda self, n: torch.stack(
            [torch.arange(self.length, self.length + n).to(self.keys.device)] * self.batch_size
        ),
        _listed,
        _summed,
    ],
)

# --- 4.2 -------------------------------------------------------------------------------------------------------------

_BATCH = 2


class _Layers(Llama):
    """A model whose layers are a stand-in: it does to a cache what a model does, and writes down each pass.

    A token's key is a vector of its own plus its position; its hidden state is the sum of the keys that it sees.
    """

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        self.table = _whole(_CONFIG.vocab_size, _CONFIG.head_dim, seed=1, most=9)  # [V, D]
        self.passes: list[tuple[list[int], int]] = []  # the shape of the ids, the first position

    def forward(self, ids: Tensor, cache: Any) -> Tensor:
        positions = cache.positions(ids.shape[1])  # [B, T]
        self.passes.append((list(ids.shape), int(positions[0, 0])))
        key = self.table[ids] + positions[: ids.shape[0], :, None]  # [B, T, D]
        heads = key[:, None].expand(-1, _CONFIG.num_key_value_heads, -1, -1)  # [B, Hkv, T, D]
        keys = key
        for layer in range(_CONFIG.num_hidden_layers):
            keys, _ = cache.append(layer, heads + layer, -heads)  # [B, Hkv, S, D]
        return keys[:, 0].cumsum(dim=1)[:, -ids.shape[1] :]  # [B, T, D]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.table.mT  # [..., V]


def _ids(held: int, new: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * held + new)
    return torch.randint(0, _CONFIG.vocab_size, (_BATCH, held + new), generator=generator)  # [B, held + new]


def _shared(ids: Tensor) -> Tensor:
    """The keys of a whole text, token by token: [B, S, D]."""
    table = _Layers().table
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
        model, ids = _Layers(), _ids(held, new)
        cache = KVCache(_CONFIG, room, _BATCH)
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
            "tokens afterwards": touched(tokens=(tokens, ids[:, held:])),
        }

    def want() -> Observation:
        passes = list(_passes(held, new, chunk_size))
        keys = _shared(_ids(held, new)) + _CONFIG.num_hidden_layers - 1  # [B, S, D], those of the last layer
        last = passes[-1][0]
        sums = torch.stack([keys[:, : end + 1].sum(dim=1) for end in range(held + new)], dim=1)  # [B, S, D]
        return {
            "the passes (shape of the ids, and where they stand)": _told(
                [([_BATCH, size], first) for size, first in passes]
            ),
            "the cache's length afterwards": held + new,
            "the keys that the cache then holds": keys,
            "the result": sums[:, -last:],
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


def _prefixes(tokens: Tensor, size: int, cache: KVCache) -> list[Tensor]:
    return [tokens[:, : start + size] for start in range(0, tokens.shape[1], size)]


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

# --- 4.3 -------------------------------------------------------------------------------------------------------------


def _head(dtype: torch.dtype) -> Llama:
    """A model whose head is filled with whole numbers; of its layers nothing is asked."""
    model = Llama(_CONFIG, dtype=dtype)
    model.lm_head.weight.copy_(_whole(_CONFIG.vocab_size, _CONFIG.hidden_size, seed=2, most=2))
    return model


def _logits_by_hand(model: Llama, rows: Tensor) -> Tensor:
    """[B, V] from [B, E], number by number."""
    columns = model.lm_head.weight.tolist()
    values = [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in rows.tolist()]
    return torch.tensor(values, dtype=torch.float32)


_PRODUCTS = ("linear", "matmul", "__matmul__", "mm", "bmm", "mv", "addmm", "einsum", "inner", "tensordot")


class _RowWatch(TorchFunctionMode):
    """How many rows of vocabulary size come out of matrix products within."""

    rows = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _PRODUCTS and _CONFIG.vocab_size in result.shape:
            self.rows += result.numel() // _CONFIG.vocab_size
        return result


def _row_case(given: str, batch: int, tokens: int, dtype: torch.dtype = torch.float32) -> Case:
    def hidden() -> Tensor:
        return _whole(batch, tokens, _CONFIG.hidden_size, seed=10 * batch + tokens).to(dtype)

    def observe(f: Function) -> Observation:
        model, rows = _head(dtype), hidden()
        before = rows.clone()
        with _RowWatch() as watch:
            result = f(model, rows)
        return {
            "the result": result,
            "the rows that went through the head": watch.rows if watch.rows > batch else "one per sequence",
            "hidden afterwards": touched(hidden=(rows, before)),
        }

    def want() -> Observation:
        return {
            "the result": _logits_by_hand(_head(dtype), hidden()[:, tokens - 1]),
            "the rows that went through the head": "one per sequence",
            "hidden afterwards": UNTOUCHED,
        }

    return Case(f"hidden [{batch}, {tokens}, {_CONFIG.hidden_size}]: {given}", observe, want)


NEXT_TOKEN_LOGITS = Grader(
    cases=[
        _row_case("three prompts of 5 tokens", 3, 5),
        _row_case("one prompt of 7 tokens", 1, 7),
        _row_case("one token for each of 4 sequences: a decode step", 4, 1),
        _row_case("one token of one sequence", 1, 1),
        _row_case("a model in bfloat16", 2, 4, torch.bfloat16),
    ],
    mutants=[
        Mutant(
            lambda model, hidden: model.logits(hidden)[:, -1],
            "The numbers are right, and every row of the prompt went through the head to get them. Take the last row"
            " first, and the head of that: model.logits(hidden[:, -1]).",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden),
            "Those are the logits of every row. Only the token after the last one is unknown: hidden[:, -1].",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden[-1]),
            "hidden[-1] is the last *sequence* of the batch, with all its rows. The last row of each sequence is"
            " hidden[:, -1].",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden[:, 0]),
            "That is the first row: it says what follows the prompt's first token, which you know already.",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden[:, -1:]),
            "You have kept the axis of the tokens, [B, 1, V]. One row per sequence is wanted, [B, V]: hidden[:, -1],"
            " without the colon.",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden[:, -1]).squeeze(),
            "squeeze() drops *every* axis of size 1, the batch's too: with one sequence, [V] is left. hidden[:, -1] has"
            " dropped the right one already.",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden.mean(dim=1)),
            "You take the mean over the prompt. The last row has looked at all of it already, by way of attention; the"
            " others answer another question.",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden[:, -1]).softmax(dim=-1),
            "Those are probabilities. Logits are wanted: whoever samples divides them by a temperature first.",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden[:, -1]).argmax(dim=-1),
            "You have chosen the token already. That is the sampler's task, and it wants all V logits.",
        ),
        Mutant(
            lambda model, hidden: model.lm_head(hidden[:, -1]),
            "You call the head itself, which answers in the dtype of the weights. model.logits makes float32 of it, in"
            " which the sampler computes.",
        ),
        Mutant(
            lambda model, hidden: hidden[:, -1],
            "That is the hidden state, [B, E]. It still has to go through the head: model.logits.",
        ),
        Mutant(
            lambda model, hidden: model.logits(hidden[..., -1]),
            "hidden[..., -1] is the last *number* of each row. The last row of each sequence is hidden[:, -1].",
        ),
    ],
    alternatives=[
        lambda model, hidden: model.logits(hidden[:, -1]),
        lambda model, hidden: model.logits(hidden[:, -1, :]),
        lambda model, hidden: model.logits(hidden[:, -1:]).squeeze(1),
        lambda model, hidden: model.logits(hidden[:, -1:])[:, 0],
        lambda model, hidden: model.lm_head(hidden.select(1, hidden.shape[1] - 1)).float(),
        lambda model, hidden: (hidden[:, -1] @ model.lm_head.weight.mT).to(torch.float32),
        lambda model, hidden: torch.stack([model.logits(rows[-1]) for rows in hidden]),
    ],
)
