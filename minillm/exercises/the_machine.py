"""The exercises of Part II, *The machine*: chapters 9 to 11."""

from minillm.exercises.exercise import Exercise

THE_MACHINE: tuple[Exercise, ...] = (
    Exercise(
        "9.1",
        "The roofline",
        "minillm.machine.roofline:attainable_flops",
        (
            "How many operations per second would there be if memory were the only limit?",
            "Bytes per second times operations per byte. And if arithmetic were the only limit?",
            "Both limits hold: the smaller of intensity * machine.bandwidth_bytes_per_s and machine.flops_per_s.",
        ),
        section="the-idea",
    ),
    Exercise(
        "9.2",
        "The operations of a pass",
        "minillm.machine.roofline:forward_flops",
        (
            "Begin with one sequence and one token, no context. What is it multiplied by?",
            "The layers' weights are num_active_params(shape) - vocab_size * hidden_size, and every new token meets all"
            " of them. The head meets one token per sequence.",
            "Pairs: the t-th new token (from 1) sees context + t tokens. A pair costs 4 * head_dim operations, in each"
            " query head of each layer.",
            "batch * (2 * layers * new_tokens + 2 * head + 4 * num_attention_heads * head_dim * num_hidden_layers *"
            " pairs), with pairs = sum(context + t for t in range(1, new_tokens + 1))",
        ),
        section="the-arithmetic",
    ),
    Exercise(
        "9.3",
        "The bytes of a pass",
        "minillm.machine.roofline:forward_bytes",
        (
            "Which bytes do all tokens of a pass share, and which belong to one sequence alone?",
            "Weights are read once, whatever the batch. Keys and values: bytes per token as in 5.1, for the tokens of"
            " each sequence.",
            "num_active_params(shape) * bytes_per_weight + batch * (context + new_tokens) * 2 * num_hidden_layers *"
            " num_key_value_heads * head_dim * bytes_per_kv",
        ),
        section="the-arithmetic",
    ),
    Exercise(
        "9.4",
        "Model bandwidth utilization",
        "minillm.machine.roofline:mbu",
        (
            "How many bytes per second did the pass read?",
            "bytes_per_pass / seconds_per_pass, as a share of what the memory can deliver.",
            "bytes_per_pass / seconds_per_pass / bandwidth_bytes_per_s",
        ),
        section="measure-it",
        called="for the metrics where the bandwidth is known",
    ),
    Exercise(
        "9.5",
        "The batch at which decode turns",
        "minillm.machine.roofline:smallest_compute_bound_batch",
        (
            "Write both times as lines over the batch: a part that is there once, and a part per sequence.",
            "Operations: batch x f, with f those of one sequence. Bytes: w + batch x k, with w the weights and k one"
            " sequence's keys and values. You want batch x f / flops_per_s >= (w + batch x k) / bandwidth.",
            "With ridge = flops_per_s / bandwidth: batch x (f - ridge x k) >= ridge x w. If f <= ridge x k, no batch"
            " will do. Else round ridge * w / (f - ridge * k) up, and give at least 1.",
        ),
        section="when-does-decode-turn",
    ),
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
    Exercise(
        "11.1",
        "Does this driver run this CUDA?",
        "minillm.machine.doctor.torch_build:runs",
        (
            "Read the three versions into tuples first. Which of them may be None, and what do you answer then?",
            "One comparison settles all older versions: asked[:2] <= stated[:2]. Now only higher ones are left.",
            "A higher one runs only if asked[0] == stated[0], and then if wsl, or if the driver's own tuple is at least"
            " version_tuple(FIRST_DRIVER.get(asked[0])).",
        ),
        section="four-numbers-called-cuda",
    ),
    Exercise(
        "11.2",
        "Has this PyTorch code for this GPU?",
        "minillm.machine.doctor.torch_build:has_code_for",
        (
            "Make pairs of numbers of both sides: (8, 9) for the GPU, (8, 6) for sm_86. Pairs compare as you need it.",
            "Mind the digits: sm_100 is (10, 0). The last digit is the minor number, all before it the major one.",
            'Machine code: same major, and code <= gpu. PTX: code <= gpu. An "a" at the end of either: code == gpu.'
            r" A pattern that takes a name apart: (sm|compute)_(\d+)(\d)(a?)",
        ),
        section="four-numbers-called-cuda",
    ),
    Exercise(
        "11.3",
        "How many processors are yours",
        "minillm.machine.doctor.host:usable_cpus",
        (
            "Two questions: on which processors may it run, and for how much time?",
            "The first of cpus_allowed, cpus and cpu.logical that is known; then the smaller of it and the quota.",
            "min(allowed, max(1, math.floor(facts.cpu_quota))), where there is a quota and the number is known.",
        ),
        section="and-without-a-gpu",
    ),
    Exercise(
        "11.4",
        "What to mend first",
        "minillm.machine.doctor.finding:diagnose",
        (
            "Walk through the checks once, and keep note of which ones are no ground to stand on.",
            "Two dicts do it: blocked and absent, each from a check's name to the name at the bottom. A check that"
            " failed is blocked by itself; one that waits, by whatever its need is blocked by.",
            "failed = next((blocked[name] for name in (*check.needs, *check.after) if name in blocked), None), and"
            " missing likewise from absent, over check.needs alone. Then three branches, and afterwards the two notes:"
            ' if finding.status == "fail" or failed, blocked[check.name] = failed or check.name; else, if it is "not'
            ' here", the same with absent.',
        ),
        section="each-layer-presumes-the-one-below",
    ),
)
