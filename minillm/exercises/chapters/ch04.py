"""The exercises of chapter 4, *Prefill*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "4.1",
        "Where new tokens stand",
        "minillm.kv_cache:KVCache.positions",
        (
            "If the cache holds 5 tokens, they stand at 0 to 4. Where does the next one stand?",
            "The positions run from self.length up to, and not including, self.length + num_tokens. Each sequence has"
            " the same ones: [B, T] has B equal rows.",
            "torch.arange(self.length, self.length + num_tokens, device=self.keys.device), and then"
            " .expand(self.batch_size, num_tokens): the same row B times, without a copy.",
        ),
        called="in every pass",
        section="where-a-chunk-goes-wrong",
    ),
    Exercise(
        "4.2",
        "Forward in chunks",
        "minillm.prefill:forward_in_chunks",
        (
            "Write it for one chunk first: one pass, one advance. Then put a loop around it.",
            "tokens.split(chunk_size, dim=1) gives the chunks, the last one with what is left over. How many tokens"
            " does each sequence have in *this* chunk? That is by how much the cache advances.",
            "for chunk in tokens.split(chunk_size, dim=1): hidden = model(chunk, cache);"
            " cache.advance(chunk.shape[1]). After the loop, return hidden: it is that of the last chunk.",
        ),
        called="in every pass",
        section="in-chunks",
    ),
    Exercise(
        "4.3",
        "One row for the head",
        "minillm.prefill:next_token_logits",
        (
            "Of all the rows of hidden, whose next token is not in the prompt?",
            "The last one of each sequence. Take it *before* the head, not after it.",
            "model.logits(hidden[:, -1]): the last of the second axis, for every sequence.",
        ),
        called="in every pass",
        section="one-row-for-the-head",
    ),
    Exercise(
        "4.4",
        "The pairs that a causal mask leaves",
        "minillm.machine.roofline:visible_pairs",
        (
            "Write down how many keys each of 3 new tokens behind 4 cached ones sees. What is the sum made of?",
            "A rectangle and a triangle: every new token sees all cached ones, and token number t of the new ones sees"
            " t of the new ones.",
            "new_tokens * context, and 1 + 2 + ... + new_tokens, which is new_tokens * (new_tokens + 1) // 2.",
        ),
        section="the-arithmetic",
    ),
    Exercise(
        "4.5",
        "The knee: from where on arithmetic limits",
        "minillm.machine.roofline:smallest_compute_bound_prompt",
        (
            "Try a prompt of one token. Is its pass limited by arithmetic? If not, try the next.",
            "A pass is limited by arithmetic when work.flops / machine.flops_per_s is at least work.bytes /"
            " machine.bandwidth_bytes_per_s; in other words, when its intensity reaches the ridge point.",
            "prompt_tokens = 1; while bound_by(prefill_work(shape, prompt_tokens, bytes_per_weight, bytes_per_kv),"
            ' machine) != "compute": prompt_tokens += 1; return prompt_tokens. (A search by halves is quicker.)',
        ),
        section="the-arithmetic",
    ),
)
