"""The exercises of chapter 5, *The KV cache*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "5.1",
        "Bytes of cache per token",
        "minillm.kv_cache:kv_bytes_per_token",
        (
            "Count the numbers that one token leaves behind in one layer; then count layers; then bytes.",
            "A layer keeps one key vector and one value vector for each key/value head, head_dim numbers long. The"
            " query heads leave nothing behind.",
            "2 (K and V) x num_hidden_layers x num_key_value_heads x head_dim x dtype.itemsize. Take head_dim from the"
            " config: not every model's is hidden_size / num_attention_heads.",
        ),
        called="where a cache's bytes are counted",
        section="the-price-in-bytes",
    ),
    Exercise(
        "5.2",
        "Append to the cache",
        "minillm.kv_cache:KVCache.append",
        (
            "Four numbers say it all: which layer, where the new tokens start, where they end, how much room there is.",
            "start = self.length and end = start + k.shape[2]. The write goes to [start:end] along the fourth axis of"
            " self.keys; what you return is [:end] of the same layer.",
            "Check end against self.max_seq_len first. Then keys = self.keys[layer]; keys[:, :, start:end] = k; the"
            " same for the values; return keys[:, :, :end], values[:, :, :end].",
        ),
        called="in every pass",
        section="the-code",
    ),
    Exercise(
        "5.3",
        "Attention of one new token",
        "minillm.attention:single_query_attention",
        (
            "Write it for H == Hkv first: scores = q @ k.transpose(-2, -1), scaled, softmax, times v. Which axis does"
            " the softmax run along?",
            "The scale is 1 / sqrt(head_dim), and softmax runs over the keys: the scores' last axis.",
            "For the groups, let neighbours share: k.repeat_interleave(H // Hkv, dim=1) gives each query head its key"
            " head. Cheaper: view q as [B, Hkv, H // Hkv, D], so that a group's queries are the rows of one matrix"
            " product with its key head, and view the result back.",
        ),
        called="in decode steps, where 5.5 hands them on to it",
        section="fewer-heads-to-remember",
    ),
    Exercise(
        "5.4",
        "The causal mask of a chunk",
        "minillm.attention:causal_mask",
        (
            "Write down, for q_len = 2 and kv_len = 5, at which position each query stands.",
            "Query t stands at position kv_len - q_len + t. It may see the key at position s where s is at most that.",
            "torch.ones(q_len, kv_len, dtype=torch.bool, device=device), and then .tril with the diagonal moved right"
            " by the number of cached tokens.",
        ),
        called="for several tokens behind cached ones",
        section="the-code",
    ),
    Exercise(
        "5.5",
        "Attention of several tokens on a warm cache",
        "minillm.attention:causal_attention",
        (
            "It is 5.3 with T rows of scores instead of one, and one step more between the scaling and the softmax.",
            "Scores are [B, H, T, S]. Where the mask of 5.4 is False, a score must become -inf *before* the softmax, so"
            " that it gets no weight and the others still sum to one.",
            "k and v repeated as in 5.3; scores = q @ k.transpose(-2, -1) / sqrt(D);"
            " scores.masked_fill(~causal_mask(T, S, q.device), -inf); softmax over the last axis; @ v. With"
            " F.scaled_dot_product_attention: attn_mask=causal_mask(...) and enable_gqa=True; its is_causal=True aligns"
            " the mask to the upper left, which is right only for T == S.",
        ),
        called="in every pass",
        section="the-code",
    ),
    Exercise(
        "5.6",
        "Step back: truncate",
        "minillm.kv_cache:KVCache.truncate",
        (
            "What makes a token part of the cache? Not that its numbers are in memory.",
            "The length alone. Everything behind it is scrap that the next append overwrites.",
            "Raise InputError unless 0 <= length <= self.length; then set self._length = length. Nothing else.",
        ),
        called="when a cache steps back, as in a chat",
        section="the-code",
    ),
    Exercise(
        "5.7",
        "When the cache outgrows the weights",
        "minillm.kv_cache:tokens_that_fit",
        (
            "What does one more token cost, if every sequence gets one?",
            "batch_size times the bytes of 5.1.",
            "num_bytes // (kv_bytes_per_token(config, dtype) * batch_size): whole tokens only, so the division rounds"
            " down.",
        ),
        section="the-price-in-bytes",
    ),
)
