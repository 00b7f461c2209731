"""4.1 and 4.3: a real cache's positions, and a real head that is watched."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graders.ch04_model import CONFIG, whole
from graders.common import UNTOUCHED, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache
from minillm.model import Llama

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
        cache = KVCache(CONFIG, room, batch)
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
    return torch.arange(self.length, num_tokens, device=self.keys.device).expand(self.batch_size, -1)


def _whole_text(self: KVCache, num_tokens: int) -> Tensor:
    return torch.arange(self.length + num_tokens, device=self.keys.device).expand(self.batch_size, -1)


def _advancing(self: KVCache, num_tokens: int) -> Tensor:
    result = _positions()(self, num_tokens)
    self.advance(num_tokens)
    return result


def _setting_the_length(self: KVCache, num_tokens: int) -> Tensor:
    self.length += num_tokens  # pyright: ignore[reportAttributeAccessIssue]
    return _positions()(self, num_tokens)


def _all_at_the_next(self: KVCache, num_tokens: int) -> Tensor:
    return torch.full((self.batch_size, num_tokens), self.length, device=self.keys.device)


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
            "Your range ends at num_tokens. That is how many tokens there are, not where they end (behind a longer"
            " cache, PyTorch refuses such a range): the end is self.length + num_tokens.",
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
        Mutant(
            _setting_the_length,
            "You set the cache's length, which is only there to be read. Here it should not change at all: the caller"
            " counts the tokens in, with advance, when they have been computed.",
        ),
        Mutant(
            _all_at_the_next,
            "All your tokens stand at the same position. Only the first of them stands at self.length, the next one"
            " behind it: count on, as torch.arange does.",
        ),
        Mutant(
            _positions(shape=lambda row, cache: row.repeat(1, cache.batch_size)),
            "You repeat the row along the tokens, into one row that is B times as long. It is to be repeated along the"
            " sequences: .repeat(self.batch_size, 1).",
        ),
        Mutant(
            _positions(shape=lambda row, cache: row.int().expand(cache.batch_size, -1)),
            "The numbers are right, in int32. PyTorch's whole numbers are int64 unless you say otherwise, and so are"
            " the engine's positions: leave the dtype away.",
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

# --- 4.3 -------------------------------------------------------------------------------------------------------------


def _head(dtype: torch.dtype) -> Llama:
    """A model whose head is filled with whole numbers; of its layers nothing is asked."""
    model = Llama(CONFIG, dtype=dtype)
    model.lm_head.weight.copy_(whole(CONFIG.vocab_size, CONFIG.hidden_size, seed=2, most=2))
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
        if getattr(func, "__name__", "") in _PRODUCTS and CONFIG.vocab_size in result.shape:
            self.rows += result.numel() // CONFIG.vocab_size
        return result


def _row_case(given: str, batch: int, tokens: int, dtype: torch.dtype = torch.float32) -> Case:
    def hidden() -> Tensor:
        return whole(batch, tokens, CONFIG.hidden_size, seed=10 * batch + tokens).to(dtype)

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

    return Case(f"hidden [{batch}, {tokens}, {CONFIG.hidden_size}]: {given}", observe, want)


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
            lambda model, hidden: model.logits(hidden[:, -2]),
            "That is the last row but one: it says what follows the last token but one, and that is in the prompt. The"
            " last is hidden[:, -1].",
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
