"""The exercises of chapter 10, *Will it fit?*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "10.1",
        "Count the parameters",
        "minillm.machine.shape:num_params",
        (
            "Write a table with one line per matrix of a layer: rows x columns. Then the two tables of the vocabulary.",
            "With q = num_attention_heads * head_dim and kv = num_key_value_heads * head_dim, attention has hidden * q"
            " twice (queries in, output back) and hidden * kv twice. Do not assume that q is hidden_size.",
            "layers * (2 * hidden * (q + kv) + experts * 3 * hidden * intermediate + router + 2 * hidden) + hidden"
            " + tables * vocab * hidden, with a router of hidden * experts only if there are several, and one table if"
            " they are tied, else two.",
        ),
        section="the-weights",
    ),
    Exercise(
        "10.2",
        "Bytes of a quantized matrix",
        "minillm.machine.formats:WeightFormat.matrix_bytes",
        (
            "Count the blocks of one row first. A row of 100 weights in blocks of 32: how many?",
            "Rounded up: -(-columns // self.block). A row takes its blocks' bits and row_bits, and there are `rows` of"
            " them.",
            "First the case that is handed on: columns % self.block and self.otherwise. Then bits = rows * (blocks *"
            " self.block_bits + self.row_bits) + self.matrix_bits, and -(-bits // 8).",
        ),
        section="four-bits-are-not-half-a-byte",
    ),
    Exercise(
        "10.3",
        "The cache of a batch",
        "minillm.machine.memory:kv_cache_bytes",
        (
            "Bytes per token are those of 5.1. The new part is how many tokens are kept.",
            "Of one sequence: the smaller of context and window, then rounded up to whole blocks. Only then the batch.",
            "kept = min(context, window or context); blocks = -(-kept // block_size); 2 * num_hidden_layers *"
            " num_key_value_heads * head_dim * dtype_bytes(dtype) * blocks * block_size * batch",
        ),
        section="the-cache",
    ),
    Exercise(
        "10.4",
        "One GPU's share",
        "minillm.machine.memory:shard",
        (
            "Four sizes change. Which of them may be rounded, and which must divide?",
            "vocab_size is rounded up. Heads and intermediate_size must divide. Key/value heads divide as long as there"
            " are enough, then it is one for each GPU.",
            "Check first: heads % gpus, intermediate % gpus, and kv % gpus and gpus % kv (one of these two must be 0)."
            " Then replace(shape, vocab_size=-(-vocab // gpus), intermediate_size=..., num_attention_heads=...,"
            " num_key_value_heads=max(1, kv // gpus)).",
        ),
        section="several-gpus",
    ),
    Exercise(
        "10.5",
        "The longest context that fits",
        "minillm.machine.verdict:largest_context",
        (
            "If 5,000 tokens do not fit, what do you know about 6,000?",
            "Keep two numbers: one that fits (0 to begin with) and one that does not (one more than the longest), and"
            " ask about the middle.",
            "good, bad = 0, longest + 1; while bad - good > 1: middle = (good + bad) // 2; if that fits, good ="
            " middle, else bad = middle. Return good. 0 itself is never asked about: a workload has a token at least.",
        ),
        section="the-verdict",
    ),
    Exercise(
        "10.6",
        "Predict, then measure",
        "minillm.machine.footprint:predict",
        (
            "Go through the fields of Workload: which default is wrong for this run?",
            "Nearly all: weights, dtype and kv_dtype are bfloat16, block_size is 16, tokens_per_pass 2,048. And demand"
            " adds a CUDA context.",
            'Workload(context, batch, weights=FORMATS["float32"], dtype="float32", kv_dtype="float32", block_size=1,'
            " tokens_per_pass=context * batch), and demand(shape, load, overhead=0)",
        ),
        section="measure-it",
    ),
)
