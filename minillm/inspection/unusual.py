"""What is unusual about a model, in plain sentences: where it departs from Llama as it was first published, and what a
reader of its numbers would stumble over.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from minillm.config import ModelConfig, RopeScaling
from minillm.inspection.expected import COMPUTED, HEAD, is_fused
from minillm.inspection.outline import Outline
from minillm.inspection.stored import StoredTensor
from minillm.inspection.vocabulary import Vocabulary


def unusual(outline: Outline, tensors: Sequence[StoredTensor] | None, words: Vocabulary | None) -> list[str]:
    """The sentences, those about attention first."""
    found = [*_of_heads(outline)]
    if outline.config is not None:
        found += [*_of_layers(outline.config), *_of_rotation(outline.config)]
    found += _of_tables(outline, words)
    if tensors is not None:
        found += _of_tensors(outline, tensors)
    if outline.config is not None:
        found += _of_ends(outline.config, words)
    return found


def _of_heads(o: Outline) -> Iterator[str]:
    if o.heads and o.kv_heads and o.usual_cache:
        if o.kv_heads == 1:
            yield f"Multi-query attention: all {o.heads} query heads share one key/value head."
        elif o.kv_heads < o.heads:
            group = o.heads // o.kv_heads
            yield (
                f"Grouped-query attention: {o.heads} query heads share {o.kv_heads} key/value heads, {group} to one, "
                f"so the KV cache is {_fraction(group)} of what it would be with one for each."
            )
        else:
            yield "Every query head has a key/value head of its own, so the KV cache is as large as can be."
    if not o.usual_cache:
        yield "Latent attention: what is cached is a compressed vector per token, not keys and values per head."
    if o.heads and o.head_dim and o.hidden_size and o.heads * o.head_dim != o.hidden_size:
        yield (
            f"The head size is stated, not derived: {o.heads} heads of {o.head_dim} are {o.heads * o.head_dim:,} wide, "
            f"and the hidden size is {o.hidden_size:,}."
        )


def _of_layers(c: ModelConfig) -> Iterator[str]:
    if c.qk_norm:
        yield f"Queries and keys are normalised per head (RMSNorm over {c.head_dim}) before they are rotated."
    biases = {"queries, keys and values": c.qkv_bias, "the attention's output": c.output_bias, "the MLP": c.mlp_bias}
    biased = [name for name, there in biases.items() if there]
    if biased:
        yield f"There are biases on {_listed(biased)}."
    if c.sliding_window is not None:
        everywhere = len(c.sliding_layers) == c.num_hidden_layers
        where = "In every layer" if everywhere else f"In {len(c.sliding_layers)} of {c.num_hidden_layers} layers"
        which = "" if everywhere else f": {_layers(c.sliding_layers)}"
        idle = ", which is no less than the context" if c.sliding_window >= c.max_position_embeddings else ""
        yield f"{where} a token sees only the newest {c.sliding_window:,} tokens (sliding window){idle}{which}."
    if c.nope_layers:
        yield (
            f"{len(c.nope_layers)} of {c.num_hidden_layers} layers do not rotate queries and keys (NoPE): "
            f"{_layers(c.nope_layers)}."
        )
    multipliers = {
        "embedding": c.embedding_multiplier,
        "residual": c.residual_multiplier,
        "attention": c.attention_multiplier,
        "logits (as a divisor)": c.logits_scaling,
    }
    stated = [f"{name} {value:g}" for name, value in multipliers.items() if value not in (None, 1.0)]
    if stated:
        yield f"It has multipliers of its own: {_listed(stated)}."


def _of_rotation(c: ModelConfig) -> Iterator[str]:
    if c.rope_scaling is not None:
        yield f"Its rotary positions are scaled ({c.rope_scaling.kind}): {_rule(c.rope_scaling)}."


def _rule(s: RopeScaling) -> str:
    original = f"{s.original_max_position_embeddings:,}"
    attention = "" if s.attention_factor == 1 else f"; queries and keys grow by {s.attention_factor:.4g} each"
    if s.kind == "linear":
        return f"all positions are divided by {s.factor:g}"
    if s.kind == "dynamic":
        return f"beyond {original} tokens the base grows with the length"
    if s.kind in ("llama3", "yarn"):
        kept = f"slow frequencies are divided by {s.factor:g}, fast ones are kept"
        return f"{kept}; pre-trained on {original} tokens{attention}"
    if s.short_factor == s.long_factor:
        return f"every frequency is divided by a number of its own{attention}"
    return f"every frequency has two factors, one up to {original} tokens and one beyond{attention}"


def _of_tables(o: Outline, words: Vocabulary | None) -> Iterator[str]:
    if o.tied and o.vocab_size and o.hidden_size:
        yield f"The head is the embedding's table (tied): {o.vocab_size * o.hidden_size:,} numbers serve twice."
    if words is not None and words.size and o.vocab_size and words.size < o.vocab_size:
        spare = o.vocab_size - words.size
        yield f"The embedding has {spare:,} rows for which there is no token: its size is rounded up."


def _of_tensors(o: Outline, tensors: Sequence[StoredTensor]) -> Iterator[str]:
    if is_fused(tensors):
        yield "Projections are stored fused (qkv_proj, gate_up_proj), where others have one tensor for each."
    if o.tied and any(tensor.name == HEAD for tensor in tensors):
        yield "The tied head is stored all the same."
    if any(tensor.name.endswith(COMPUTED) for tensor in tensors):
        yield "Rotary frequencies are stored in it, which are computed and not read."


def _of_ends(c: ModelConfig, words: Vocabulary | None) -> Iterator[str]:
    ends = {*c.eos_token_ids, *([words.eos.id] if words is not None and words.eos is not None else [])}
    if len(ends) > 1:
        named = [_token(token_id, words) for token_id in sorted(ends)]
        yield f"{len(ends)} tokens end a text: {_listed(named)}."
    if not ends:
        yield "No token ends a text: it goes on to the limit."


def _token(token_id: int, words: Vocabulary | None) -> str:
    text = words.text_of(token_id) if words is not None else None
    return str(token_id) if text is None else f"{text} ({token_id})"


def _fraction(group: int) -> str:
    return {2: "half", 3: "a third", 4: "a quarter"}.get(group, f"1/{group}")


def _layers(layers: Sequence[int]) -> str:
    """0, 2, 4 and so on; short where they follow a rule."""
    steps = {b - a for a, b in itertools.pairwise(layers)}
    if len(layers) > 4 and len(steps) == 1:
        step = steps.pop()
        if step == 1:
            return f"{layers[0]} to {layers[-1]}"
        return f"{layers[0]}, {layers[1]} and so on to {layers[-1]}"
    return ", ".join(map(str, layers))


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
