"""3.7: the whole pass of a small model with seeded weights, against the formulas in float64."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from graders import ch03_oracle as oracle
from graders.ch03_half import half_case
from graders.ch03_oracle import HELD, NEW
from graders.ch03_pass import hidden_of, model_of, some_ids
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache
from minillm.model import DecoderLayer, Llama
from minillm.rope import rope_tables


def _case(given: str, *, held: int, new: int, batch: int) -> Case:
    ids = some_ids(batch, new)

    def observe(f: Function) -> Observation:
        model = model_of()
        cache = oracle.warm_cache(model.config, held, batch)
        with oracle.without_shape_checks():
            result = f(model, ids.clone(), cache)
        return {
            "the result": result,
            "the cache's length": cache.length,
            "cache.keys": cache.keys,
            "cache.values": cache.values,
        }

    def want() -> Observation:
        model = model_of()
        cache = oracle.warm_cache(model.config, held, batch)
        result = hidden_of(model, ids, cache)
        return {
            "the result": result.float(),
            "the cache's length": held,
            "cache.keys": cache.keys,
            "cache.values": cache.values,
        }

    return Case(
        f"a model with 4 layers; ids [{batch}, {new}], {given} (a cache that holds {held} tokens)", observe, want
    )


# --- one configurable answer -----------------------------------------------------------------------------------------

Run = Callable[[Iterable[DecoderLayer], Tensor, Tensor, Tensor, KVCache], Tensor]


def _in_order(layers: Iterable[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    for layer in layers:
        x = layer(x, cos, sin, cache)
    return x


def _answer(
    *,
    embed: Callable[[Llama, Tensor], Tensor] = lambda self, ids: self.embed_tokens(ids),
    positions: Callable[[Tensor, KVCache], Tensor] = lambda ids, cache: cache.positions(ids.shape[1]),
    tables: Callable[[Tensor, Llama], tuple[Tensor, Tensor]] = lambda positions, self: rope_tables(
        positions, self.inv_freq
    ),
    cast: Callable[[Tensor, Tensor], Tensor] = lambda table, x: table.to(x.dtype),
    layers: Callable[[Llama], Iterable[Any]] = lambda self: self.layers,
    run: Run = _in_order,
    end: Callable[[Llama, Tensor], Tensor] = lambda self, x: self.norm(x),
    after: Callable[[Tensor, KVCache], None] = lambda ids, cache: None,
) -> Function:
    """The model's forward; each argument replaces one of its decisions."""

    def llama_forward(self: Llama, ids: Tensor, cache: KVCache) -> Tensor:
        x = embed(self, ids)
        cos, sin = tables(positions(ids, cache), self)
        x = run(layers(self), x, cast(cos, x), cast(sin, x), cache)
        after(ids, cache)
        return end(self, x)

    return llama_forward


def _from_zero(ids: Tensor, cache: KVCache) -> Tensor:
    return torch.arange(ids.shape[1]).expand(ids.shape)


def _from_one(ids: Tensor, cache: KVCache) -> Tensor:
    return cache.positions(ids.shape[1]) + 1


def _all_the_same(ids: Tensor, cache: KVCache) -> Tensor:
    return torch.full(tuple(ids.shape), cache.length)


def _counted_by_hand(ids: Tensor, cache: KVCache) -> Tensor:
    return torch.arange(cache.length, cache.length + ids.shape[1], device=ids.device)[None]


def _angles_in_the_models_dtype(positions: Tensor, self: Llama) -> tuple[Tensor, Tensor]:
    angles = positions[:, None, :, None].to(self.dtype) * self.inv_freq.to(self.dtype)
    return angles.cos(), angles.sin()


def _frequencies_in_the_models_dtype(positions: Tensor, self: Llama) -> tuple[Tensor, Tensor]:
    return rope_tables(positions, self.inv_freq.to(self.dtype))


def _positions_in_the_models_dtype(positions: Tensor, self: Llama) -> tuple[Tensor, Tensor]:
    return rope_tables(positions.to(self.dtype), self.inv_freq)


def _result_thrown_away(layers: Iterable[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    for layer in layers:
        layer(x, cos, sin, cache)
    return x


def _norm_in_the_loop(self: Llama, ids: Tensor, cache: KVCache) -> Tensor:
    def run(layers: Iterable[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
        for layer in layers:
            x = self.norm(layer(x, cos, sin, cache))
        return x

    return _answer(run=run, end=lambda self, x: x)(self, ids, cache)


def _each_on_the_embedding(
    layers: Iterable[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache
) -> Tensor:
    result = x
    for layer in layers:
        result = layer(x, cos, sin, cache)
    return result


def _added_once_more(layers: Iterable[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    for layer in layers:
        x = x + layer(x, cos, sin, cache)
    return x


def _advancing_each_layer(
    layers: Iterable[DecoderLayer], x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache
) -> Tensor:
    for layer in layers:
        x = layer(x, cos, sin, cache)
        cache.advance(x.shape[1])
    return x


PASS = Grader(
    cases=[
        _case("a chunk", held=HELD, new=NEW, batch=2),
        _case("a decode step", held=7, new=1, batch=1),
        _case("a prompt", held=0, new=6, batch=1),
        half_case(),
    ],
    mutants=[
        Mutant(
            _answer(positions=_from_zero),
            "Positions start at 0 in each pass. They start where the cache ends: cache.positions(T). On an empty cache,"
            " where most tests look, the two are the same.",
        ),
        Mutant(
            _answer(positions=_from_one),
            "Your positions are one too high. The first new token stands at position cache.length, because positions"
            " count from 0.",
        ),
        Mutant(
            _answer(positions=_all_the_same),
            "All new tokens get the position of the first. In a decode step there is only one; in a chunk each stands"
            " one further: cache.positions(T).",
        ),
        Mutant(
            _answer(positions=lambda ids, cache: ids),
            "You turn by the ids. What a token *is* comes from the embedding; the angles say where it *stands*:"
            " cache.positions(T).",
        ),
        Mutant(
            _answer(tables=_angles_in_the_models_dtype),
            "The angles are made in the model's dtype. bfloat16 cannot tell position 257 from 256: make cos and sin in"
            " float32, and bring *them* into the dtype of x.",
        ),
        Mutant(
            _answer(tables=_frequencies_in_the_models_dtype),
            "You round the frequencies to the model's dtype. Multiplied by a position of some hundreds, what bfloat16"
            " leaves out is a visible angle: only cos and sin are brought into the dtype of x.",
        ),
        Mutant(
            _answer(tables=_positions_in_the_models_dtype),
            "You round the positions to the model's dtype. bfloat16 cannot tell position 257 from 256: only cos and sin"
            " are brought into the dtype of x.",
        ),
        Mutant(
            _answer(tables=lambda positions, self: rope_tables(positions, self.inv_freq)[::-1]),
            "Cosine and sine have changed places. rope_tables gives (cos, sin), and a layer is called as layer(x, cos,"
            " sin, cache).",
        ),
        Mutant(
            _answer(cast=lambda table, x: table.bfloat16()),
            "You bring cos and sin into bfloat16 whatever the model is in, and a float32 model loses its digits:"
            " .to(x.dtype).",
        ),
        Mutant(
            _answer(embed=lambda self, ids: self.embed_tokens(ids).float()),
            "You make x float32. The model's matrices are in its own dtype and refuse it: leave the rows as the"
            " embedding gives them.",
        ),
        Mutant(
            _answer(cast=lambda table, x: table),
            "cos and sin stay float32 where the model computes in bfloat16. Queries and keys then become float32 with"
            " them, and the cache refuses them: cos.to(x.dtype), sin.to(x.dtype).",
            begins="InputError: this cache holds",
        ),
        Mutant(
            _answer(end=lambda self, x: x),
            "The last norm is missing. The stream has grown from layer to layer, and the head was trained on a"
            " normalised copy of it: self.norm(x).",
        ),
        Mutant(
            _norm_in_the_loop,
            "You normalise behind every layer. self.norm stands once, behind the last of them; each layer has norms of"
            " its own.",
        ),
        Mutant(
            _answer(embed=lambda self, ids: self.norm(self.embed_tokens(ids)), end=lambda self, x: x),
            "self.norm stands before the layers. It is the last norm, behind all of them; each layer has norms of its"
            " own.",
        ),
        Mutant(
            _answer(embed=lambda self, ids: self.norm(self.embed_tokens(ids))),
            "You normalise the embedding as well. self.norm stands once, behind the last layer.",
        ),
        Mutant(
            _answer(end=lambda self, x: self.norm(self.norm(x))),
            "The last norm runs twice, and multiplies by its weights twice.",
        ),
        Mutant(
            _answer(end=lambda self, x: self.logits(self.norm(x))),
            "Those are logits. The head is a call of its own (`model.logits`), so that a prompt pays for its last row"
            " only: return the hidden states.",
        ),
        Mutant(
            _answer(end=lambda self, x: self.norm(x)[:, -1:]),
            "You return the last row only. Who calls this takes the rows that it needs: all of them, [B, T, E].",
        ),
        Mutant(
            _answer(embed=lambda self, ids: self.embed_tokens(ids) * math.sqrt(self.config.hidden_size)),
            "You scale the embedding by sqrt(E). The first transformer did, and Gemma does; Llama takes the rows of the"
            " table as they are.",
        ),
        Mutant(
            _answer(layers=lambda self: list(self.layers)[:-1]),
            "The last layer does not run.",
        ),
        Mutant(
            _answer(layers=lambda self: [self.layers[0]] * len(self.layers)),
            "The first layer runs again and again. Each has weights of its own: for layer in self.layers.",
        ),
        Mutant(
            _answer(layers=lambda self: reversed(list(self.layers))),
            "The layers run in reverse.",
        ),
        Mutant(
            _answer(run=_result_thrown_away),
            "What a layer gives is thrown away, and you return the embedding, normalised. A layer makes a new stream:"
            " x = layer(x, cos, sin, cache).",
        ),
        Mutant(
            _answer(run=_each_on_the_embedding),
            "Every layer reads the embedding, and only the last one's result is used. Each reads what the one before it"
            " has left: x = layer(x, ...).",
        ),
        Mutant(
            _answer(run=_added_once_more),
            "You add x to what a layer gives. A layer has added to the stream already, and gives back the stream.",
        ),
        Mutant(
            _answer(after=lambda ids, cache: cache.advance(ids.shape[1])),
            "You advance the cache. The hidden states are right, and the caller, who advances it too, then skips as"
            " many places as there were tokens.",
        ),
        Mutant(
            _answer(run=_advancing_each_layer),
            "You advance the cache behind each layer. All layers write at the same place, behind what is held; the"
            " caller counts the new tokens in, once.",
            begins="InputError",
        ),
    ],
    alternatives=[
        _answer(),
        _answer(positions=_counted_by_hand),
        _answer(embed=lambda self, ids: self.embed_tokens.weight[ids]),
        _answer(layers=lambda self: (self.layers[i] for i in range(self.config.num_hidden_layers))),
        _answer(cast=lambda table, x: table.type_as(x)),
    ],
)
