"""3.6: the decoder layer, against the formulas in float64."""

from collections import Counter
from collections.abc import Callable

from torch import Tensor

from graders import ch03_oracle as oracle
from graders.ch03_oracle import BATCH, HELD, NEW, ROOM
from graders.common import UNTOUCHED, random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache
from minillm.model import DecoderLayer


def _layer_case(given: str, *, held: int, new: int, batch: int = BATCH, bias: bool = False) -> Case:
    shape = oracle.config(bias)
    x = random(batch, new, shape.hidden_size, seed=8) * 2
    angles = random(batch, 1, new, shape.head_dim // 2, seed=9) * 2

    def module() -> DecoderLayer:
        return oracle.filled(DecoderLayer(shape, 2))

    def observe(f: Function) -> Observation:
        cache, own, layer = oracle.warm_cache(shape, held, batch), x.clone(), module()
        calls: Counter[str] = Counter()
        oracle.counted(calls, self_attn=(layer.self_attn, "forward"), mlp=(layer.mlp, "forward"))
        with oracle.without_shape_checks():
            result = f(layer, own, angles.cos(), angles.sin(), cache)
        return {
            "the result": result,
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the cache's length": cache.length,
            "x afterwards": touched(x=(own, x)),
            "the calls": oracle.repeated(calls),
        }

    def want() -> Observation:
        cache = oracle.warm_cache(shape, held, batch)
        result = oracle.layer(module(), x, angles, cache)
        return {
            "the result": result.float(),
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the cache's length": held,
            "x afterwards": UNTOUCHED,
            "the calls": oracle.ONCE,
        }

    held_words = f"a cache that holds {held} of {ROOM} tokens"
    return Case(f"layer 2 of a small model; x [{batch}, {new}, 20], {given} ({held_words})", observe, want)


def _layer(halves: Callable[..., Tensor], swapped: bool = False) -> Function:
    """An answer from (x, attention, mlp, first norm, second norm)."""

    def layer_forward(self: DecoderLayer, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
        return halves(
            x,
            lambda y: self.self_attn(y, sin, cos, cache) if swapped else self.self_attn(y, cos, sin, cache),
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


def _second_in_place(x, attn, mlp, norm1, norm2):
    x = x + attn(norm1(x))  # a tensor of its own
    x += mlp(norm2(x))
    return x


def _attention_twice(x, attn, mlp, norm1, norm2):
    return x + attn(norm1(x)) + mlp(norm2(x + attn(norm1(x))))


def _no_first_norm(x, attn, mlp, norm1, norm2):
    x = x + attn(x)
    return x + mlp(norm2(x))


def _second_norm_for_both(x, attn, mlp, norm1, norm2):
    x = x + attn(norm2(x))
    return x + mlp(norm2(x))


def _added_twice(x, attn, mlp, norm1, norm2):
    after = x + attn(norm1(x))
    return x + after + mlp(norm2(after))


def _sum_doubled(x, attn, mlp, norm1, norm2):
    x = x + attn(norm1(x))
    return x + x + mlp(norm2(x))


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
            _layer(_second_norm_for_both),
            "Both halves use post_attention_layernorm. Attention has a norm of its own, with other weights:"
            " input_layernorm.",
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
            _layer(_no_first_norm),
            "Attention reads the stream as it is. Its copy is normalised first, by input_layernorm.",
        ),
        Mutant(
            _layer(_added_twice),
            "The x that came in is added twice: the stream as attention left it has it already. The MLP's result is"
            " added to that stream alone.",
        ),
        Mutant(
            _layer(_sum_doubled),
            "The stream is added to itself in the second line: x + what the MLP gives, and x once.",
        ),
        Mutant(
            _layer(_right, swapped=True),
            "Cosine and sine have changed places on their way to attention: self_attn(x, cos, sin, cache).",
        ),
        Mutant(
            _layer(_in_place),
            "You write into the caller's x: += on a tensor changes the tensor itself. x = x + ... makes a new one.",
        ),
        Mutant(
            _layer(_attention_twice),
            "Attention runs twice. The result is right and the work is double: keep x + what attention gave under a"
            " name, and use it twice.",
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
    alternatives=[_layer(_right), _layer(_second_in_place), _layer(_with_names), _layer(_other_way_round)],
)
