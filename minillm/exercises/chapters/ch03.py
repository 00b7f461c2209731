"""The exercises of chapter 3, *Inside the transformer*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "3.1",
        "RMSNorm",
        "minillm.model:rms_norm",
        (
            "Read the name backwards: the root of the mean of the squares. Of which axis?",
            "x.float() first; then .square().mean(dim=-1, keepdim=True), which is [..., 1]; eps belongs under the"
            " root.",
            "wide = x.float(); scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps);"
            " return (wide * scale).to(x.dtype) * weight.",
        ),
        called="in every pass",
        section="the-same-size-for-everybody",
    ),
    Exercise(
        "3.2",
        "How fast each pair turns",
        "minillm.rope:plain_frequencies",
        (
            "Work it by hand for head_dim = 4: the exponents of the two pairs are 0 and -1/2.",
            "torch.arange(0, head_dim, 2) is 0, 2, 4, ...: that is 2 i already. Divide it by head_dim.",
            "exponents = torch.arange(0, head_dim, 2).float() / head_dim; return 1.0 / rope_theta**exponents.",
        ),
        called="when a model is made",
        section="where-a-token-stands",
    ),
    Exercise(
        "3.3",
        "Turn the pairs",
        "minillm.rope:apply_rope",
        (
            "Cut x into the two halves of its last axis. Each is [B, H, T, D/2]: the shape of cos, but for the heads.",
            "first, second = x.chunk(2, dim=-1). The new first half is first * cos - second * sin. What is the new"
            " second half? Both are made from the *old* halves.",
            "torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).",
        ),
        called="in every pass",
        section="where-a-token-stands",
    ),
    Exercise(
        "3.4",
        "Attention, from the stream and back",
        "minillm.model:Attention.forward",
        (
            "Write down the shape after each step: [B, T, E], [B, T, (H + 2 Hkv) D], three pieces, three pieces with an"
            " axis for heads, ...",
            "self.qkv_proj(x).split(self.sizes, dim=-1) gives q, k and v. Each is [B, T, heads x D]: first .view(B, T,"
            " heads, D), then .transpose(1, 2). In this order: a view alone, straight to [B, heads, T, D], would mix"
            " tokens and heads.",
            "q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin); mixed = cache.attend(self.layer, q, k, v);"
            " return self.o_proj(mixed.transpose(1, 2).reshape(B, T, -1)).",
        ),
        called="in every pass",
        section="looking-at-each-other",
        stub="attention_forward",
    ),
    Exercise(
        "3.5",
        "SwiGLU",
        "minillm.model:SwiGLU.forward",
        (
            "One product gives both halves. Which of them is the gate?",
            "gate, up = self.gate_up_proj(x).chunk(2, dim=-1). Only the gate goes through silu.",
            "return self.down_proj(F.silu(gate) * up).",
        ),
        called="in every pass",
        section="thinking-alone",
        stub="mlp_forward",
    ),
    Exercise(
        "3.6",
        "A layer",
        "minillm.model:DecoderLayer.forward",
        (
            "Say it in words first: the stream, plus what attention makes of a normalised copy. Then once more, with"
            " the MLP.",
            "x on the left of the plus is never normalised. In the second line, x is what the first line gave.",
            "x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache), and then the same with"
            " self.post_attention_layernorm and self.mlp.",
        ),
        called="in every pass",
        section="a-stream-that-is-only-added-to",
        stub="layer_forward",
    ),
    Exercise(
        "3.7",
        "The whole pass",
        "minillm.model:Llama.forward",
        (
            "Five steps: look up, make the angles, go through the layers, normalise, return.",
            "The angles are the same for all layers: make them once, before the loop. They belong to"
            " cache.positions(ids.shape[1]), which starts where the cache ends, and not at 0.",
            "x = self.embed_tokens(ids); cos, sin = rope_tables(cache.positions(ids.shape[1]), self.inv_freq), each"
            " .to(x.dtype); for layer in self.layers: x = layer(x, cos, sin, cache); return self.norm(x).",
        ),
        called="in every pass",
        section="the-whole-pass",
        stub="llama_forward",
    ),
)
