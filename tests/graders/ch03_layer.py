"""3.5 and 3.6: the MLP and the decoder layer, against the formulas in float64."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graders import ch03_oracle as oracle
from graders.ch03_oracle import BATCH, HELD, NEW, ROOM
from graders.common import UNTOUCHED, random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache
from minillm.model import DecoderLayer, SwiGLU

# --- 3.5 -------------------------------------------------------------------------------------------------------------


def _mlp_case(given: str, batch: int, new: int, bias: bool = False, size: float = 1.0) -> Case:
    x = random(batch, new, 20, seed=8) * size

    def module() -> SwiGLU:
        return oracle.filled(SwiGLU(oracle.config(bias)))

    def observe(f: Function) -> Observation:
        own = x.clone()
        with oracle.without_shape_checks():
            result = f(module(), own)
        return {"the result": result, "x afterwards": touched(x=(own, x))}

    def want() -> Observation:
        return {"the result": oracle.mlp(module(), x).float(), "x afterwards": UNTOUCHED}

    return Case(f"a SwiGLU with E = 20, I = 28; x [{batch}, {new}, 20]: {given}", observe, want)


def _gated(
    gate: Callable[[Tensor], Tensor] = F.silu,
    mix: Callable[[Tensor, Tensor], Tensor] = torch.mul,
    end: Callable[[SwiGLU, Tensor, Tensor], Tensor] = lambda self, middle, x: self.down_proj(middle),
    cut: Callable[[Tensor], tuple[Tensor, ...]] = lambda both: both.chunk(2, dim=-1),
) -> Function:
    """The module's forward; each argument replaces one of its decisions."""

    def mlp_forward(self: SwiGLU, x: Tensor) -> Tensor:
        first, second = cut(self.gate_up_proj(x))
        return end(self, mix(gate(first), second), x)

    return mlp_forward


def _identity(x: Tensor) -> Tensor:
    return x


def _weights_by_hand(self: SwiGLU, x: Tensor) -> Tensor:
    """Right without biases."""
    gate, up = (x @ self.gate_up_proj.weight.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ self.down_proj.weight.T


def _two_products(self: SwiGLU, x: Tensor) -> Tensor:
    weights, biases = self.gate_up_proj.weight.chunk(2), self.gate_up_proj.bias
    gate_bias, up_bias = (None, None) if biases is None else biases.chunk(2)
    gate, up = F.linear(x, weights[0], gate_bias), F.linear(x, weights[1], up_bias)
    return self.down_proj(gate * torch.sigmoid(gate) * up)


def _in_slices(self: SwiGLU, x: Tensor) -> Tensor:
    both = self.gate_up_proj(x)
    middle = both.shape[-1] // 2
    gate, up = both[..., :middle], both[..., middle:]
    return self.down_proj(up * gate / (1 + torch.exp(-gate)))


MLP = Grader(
    cases=[
        _mlp_case("a chunk", BATCH, NEW),
        _mlp_case("a decode step", 1, 1),
        _mlp_case("a chunk, in a model with biases", BATCH, NEW, bias=True),
        _mlp_case("large numbers, where the gate is open or shut", 3, 4, size=2.0),
    ],
    mutants=[
        Mutant(
            _gated(_identity, lambda gate, up: gate * F.silu(up)),
            "silu is on the wrong half. The first half of the projection is the gate, and the gate goes through silu.",
        ),
        Mutant(
            _gated(_identity, lambda gate, up: F.silu(gate * up)),
            "silu comes after the product. Only the gate goes through it, and then multiplies up.",
        ),
        Mutant(
            _gated(mix=lambda gate, up: gate * F.silu(up)),
            "Both halves go through silu. Up passes as it is: that it can be of any size and sign is the point.",
        ),
        Mutant(
            _gated(F.gelu),
            "That is GELU, which makes GEGLU. This model's gate is silu: z * sigmoid(z).",
        ),
        Mutant(
            _gated(torch.sigmoid),
            "The gate is sigmoid(z) alone, the plain GLU. silu is z * sigmoid(z).",
        ),
        Mutant(
            _gated(F.relu),
            "The gate is relu. silu is smooth, and lets a little of the negative through: z * sigmoid(z).",
        ),
        Mutant(
            _gated(mix=torch.add),
            "You add up to the gate. The gate *multiplies*: it decides how much of each number passes.",
        ),
        Mutant(
            _gated(cut=lambda both: (both[..., 0::2], both[..., 1::2])),
            "You take every second number for the gate. The projection gives all of the gate first, then all of up:"
            " chunk(2, dim=-1).",
        ),
        Mutant(
            _gated(end=lambda self, middle, x: middle),
            "down_proj is missing: you return I numbers for each token, where the stream has E.",
        ),
        Mutant(
            _gated(end=lambda self, middle, x: x + self.down_proj(middle)),
            "You add x here. The layer does that (3.6), and it adds to the stream as it was *before* the norm.",
        ),
        Mutant(
            _weights_by_hand,
            "The biases are lost. Call the projections, self.gate_up_proj(x), instead of multiplying with their"
            " weights: some models have a bias.",
        ),
        Mutant(
            _gated(cut=lambda both: both.chunk(2, dim=1) if both.shape[1] > 1 else (both, both)),
            "You cut the axis of the tokens. The gate and up lie side by side in the last axis: chunk(2, dim=-1).",
            begins="RuntimeError: The size of tensor a (3) must match",
        ),
    ],
    alternatives=[_two_products, _in_slices, _gated(lambda gate: gate * gate.sigmoid())],
)

# --- 3.6 -------------------------------------------------------------------------------------------------------------


def _layer_case(given: str, *, held: int, new: int, batch: int = BATCH, bias: bool = False) -> Case:
    shape = oracle.config(bias)
    x = random(batch, new, shape.hidden_size, seed=8) * 2
    angles = random(batch, 1, new, shape.head_dim // 2, seed=9) * 2

    def module() -> DecoderLayer:
        return oracle.filled(DecoderLayer(shape, 2))

    def observe(f: Function) -> Observation:
        cache = oracle.warm_cache(shape, held, batch)
        with oracle.without_shape_checks():
            result = f(module(), x.clone(), angles.cos(), angles.sin(), cache)
        return {
            "the result": result,
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the cache's length": cache.length,
        }

    def want() -> Observation:
        cache = oracle.warm_cache(shape, held, batch)
        result = oracle.layer(module(), x, angles, cache)
        return {
            "the result": result.float(),
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the cache's length": held,
        }

    held_words = f"a cache that holds {held} of {ROOM} tokens"
    return Case(f"layer 2 of a small model; x [{batch}, {new}, 20], {given} ({held_words})", observe, want)


def _layer(halves: Callable[..., Tensor]) -> Function:
    """An answer from (x, attention, mlp, first norm, second norm)."""

    def layer_forward(self: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
        return halves(
            x,
            lambda y: self.self_attn(y, cos, sin, cache),
            self.mlp,
            self.input_layernorm,
            self.post_attention_layernorm,
        )

    return layer_forward


def _right(x, attn, mlp, norm1, norm2):
    x = x + attn(norm1(x))
    return x + mlp(norm2(x))


def _post_norm(x, attn, mlp, norm1, norm2):
    x = norm1(x + attn(x))
    return norm2(x + mlp(x))


def _named_norms(x, attn, mlp, norm1, norm2):
    x = norm2(x + attn(norm1(x)))
    return x + mlp(x)


def _norm_on_the_stream(x, attn, mlp, norm1, norm2):
    x = norm1(x)
    x = x + attn(x)
    x = norm2(x)
    return x + mlp(x)


def _normed_results(x, attn, mlp, norm1, norm2):
    x = x + norm1(attn(x))
    return x + norm2(mlp(x))


def _norm_of_attention(x, attn, mlp, norm1, norm2):
    x = x + norm2(attn(norm1(x)))
    return x + mlp(x)


def _one_norm_for_both(x, attn, mlp, norm1, norm2):
    x = x + attn(norm1(x))
    return x + mlp(norm1(x))


def _norms_swapped(x, attn, mlp, norm1, norm2):
    x = x + attn(norm2(x))
    return x + mlp(norm1(x))


def _side_by_side(x, attn, mlp, norm1, norm2):
    return x + attn(norm1(x)) + mlp(norm2(x))


def _first_sum_lost(x, attn, mlp, norm1, norm2):
    after = x + attn(norm1(x))
    return x + mlp(norm2(after))


def _mlp_first(x, attn, mlp, norm1, norm2):
    x = x + mlp(norm2(x))
    return x + attn(norm1(x))


def _no_first_residual(x, attn, mlp, norm1, norm2):
    x = attn(norm1(x))
    return x + mlp(norm2(x))


def _no_second_residual(x, attn, mlp, norm1, norm2):
    x = x + attn(norm1(x))
    return mlp(norm2(x))


def _no_residual(x, attn, mlp, norm1, norm2):
    return mlp(norm2(attn(norm1(x))))


def _no_norms(x, attn, mlp, norm1, norm2):
    x = x + attn(x)
    return x + mlp(x)


def _no_second_norm(x, attn, mlp, norm1, norm2):
    x = x + attn(norm1(x))
    return x + mlp(x)


def _mlp_of_attention_alone(x, attn, mlp, norm1, norm2):
    mixed = attn(norm1(x))
    return x + mixed + mlp(norm2(mixed))


def _in_place(x, attn, mlp, norm1, norm2):
    x += attn(norm1(x))
    x += mlp(norm2(x))
    return x


def _with_names(x, attn, mlp, norm1, norm2):
    residual = x
    x = norm1(x)
    x = attn(x)
    x = residual + x
    residual = x
    x = mlp(norm2(x))
    return residual + x


def _other_way_round(x, attn, mlp, norm1, norm2):
    return mlp(norm2(middle := attn(norm1(x)) + x)) + middle


def _advancing(self: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    result = _layer(_right)(self, x, cos, sin, cache)
    cache.advance(x.shape[1])
    return result


LAYER = Grader(
    cases=[
        _layer_case("a chunk", held=HELD, new=NEW),
        _layer_case("a decode step", held=7, new=1),
        _layer_case("a prompt", held=0, new=4, batch=1, bias=True),
    ],
    mutants=[
        Mutant(
            _layer(_post_norm),
            "You normalise *after* each addition, as the first transformer did. Here the norm stands before attention"
            " and before the MLP, and the stream itself is never normalised.",
        ),
        Mutant(
            _layer(_named_norms),
            "You normalise the stream behind attention. In spite of its name, post_attention_layernorm makes the MLP's"
            " copy; the stream goes on as it is: x + self.mlp(self.post_attention_layernorm(x)).",
        ),
        Mutant(
            _layer(_norm_on_the_stream),
            "You normalise x and then add to the normalised x. The norm makes a copy for attention (or the MLP) to"
            " read; what is added to is the stream as it was.",
        ),
        Mutant(
            _layer(_normed_results),
            "You normalise what attention and the MLP give, and let them read the stream as it is. It is the other way"
            " round: their input is normalised, and their result is added as it is.",
        ),
        Mutant(
            _layer(_norm_of_attention),
            "You normalise attention's result with post_attention_layernorm. It belongs before the MLP, on what the MLP"
            " reads.",
        ),
        Mutant(
            _layer(_one_norm_for_both),
            "Both halves use input_layernorm. The MLP has a norm of its own, with other weights:"
            " post_attention_layernorm.",
        ),
        Mutant(
            _layer(_norms_swapped),
            "The two norms have changed places: input_layernorm is attention's, post_attention_layernorm the MLP's.",
        ),
        Mutant(
            _layer(_side_by_side),
            "Attention and MLP both read the stream as it came in. (Some models do so, to run them side by side.) Here"
            " the MLP reads what attention has added already.",
        ),
        Mutant(
            _layer(_first_sum_lost),
            "What attention gave is lost: the MLP's result is added to the x that came in. Add it to the stream as"
            " attention left it.",
        ),
        Mutant(
            _layer(_mlp_first),
            "The MLP comes first. A layer is attention, then the MLP.",
        ),
        Mutant(
            _layer(_no_first_residual),
            "The stream ends at attention: its result replaces x, and what the token was is gone. Add it to x.",
        ),
        Mutant(
            _layer(_no_second_residual),
            "The stream ends at the MLP: its result replaces x. Add it to x.",
        ),
        Mutant(
            _layer(_no_residual),
            "There is no residual stream: each half replaces x by its result. Both only add to it.",
        ),
        Mutant(
            _layer(_no_norms),
            "The norms are missing. Attention and MLP were trained on normalised copies of the stream.",
        ),
        Mutant(
            _layer(_no_second_norm),
            "The MLP reads the stream as it is. Its copy is normalised first, by post_attention_layernorm.",
        ),
        Mutant(
            _layer(_mlp_of_attention_alone),
            "The MLP reads attention's result alone. It reads the whole stream, to which that has been added.",
        ),
        Mutant(
            _advancing,
            "You advance the cache. The next layer would write its keys one chunk too far: the caller advances it when"
            " all layers have run.",
        ),
    ],
    alternatives=[_layer(_right), _layer(_in_place), _layer(_with_names), _layer(_other_way_round)],
)
