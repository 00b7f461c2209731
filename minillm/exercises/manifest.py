"""Which exercises there are, what each stands for in the engine, where it is set, and its hints.

No torch here: listing and hints are quick.
"""

from dataclasses import dataclass
from typing import Any

from minillm.errors import InputError

_CHAPTERS = {
    1: "chapters/01-the-journey.md",
    5: "chapters/05-the-kv-cache.md",
    9: "chapters/09-two-resources.md",
    10: "chapters/10-will-it-fit.md",
    11: "chapters/11-bringing-up-the-box.md",
}


@dataclass(frozen=True)
class Exercise:
    """One exercise. `name` is the stub's function; `reference` ("module:qualname") is the piece it replaces.

    `hints` go from a nudge to nearly the answer.
    """

    id: str
    title: str
    reference: str
    hints: tuple[str, ...]
    section: str = ""  # the anchor of the chapter's section that explains it; "": the exercise's own place

    @property
    def chapter(self) -> int:
        """5 for 5.2."""
        return int(self.id.split(".")[0])

    @property
    def name(self) -> str:
        """The function's name in the stub file: `append` for `KVCache.append`."""
        return self.reference.split(":")[1].split(".")[-1]

    @property
    def file_name(self) -> str:
        """The stub file: ch05.py."""
        return f"ch{self.chapter:02}.py"

    @property
    def anchor(self) -> str:
        """The label of the exercise in its chapter: ex-5-2."""
        return "ex-" + self.id.replace(".", "-")

    @property
    def chapter_path(self) -> str:
        """The chapter's source, seen from the root of the repository."""
        return _CHAPTERS[self.chapter]

    @property
    def where(self) -> str:
        """Where the book explains it: chapters/05-the-kv-cache.md#the-code."""
        return f"{self.chapter_path}#{self.section or self.anchor}"


EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "1.1",
        "Time per output token",
        "minillm.metrics:time_per_output_token",
        (
            "Draw the tokens as posts on a time line. TPOT is about the stretches of fence between them.",
            "Three tokens have two gaps. All gaps together reach from the first token to the last.",
            "(last time - first time) / (number of tokens - 1), and None where that would divide by zero.",
        ),
        section="where-it-breaks",
    ),
    Exercise(
        "1.2",
        "How long a request takes",
        "minillm.metrics:request_seconds",
        (
            "Which tokens does the TTFT pay for already?",
            "One of them. Each of the others adds one TPOT.",
            "ttft_s + (completion_tokens - 1) * tpot_s",
        ),
        section="the-arithmetic",
    ),
    Exercise(
        "1.3",
        "What the cache holds at the end",
        "minillm.metrics:tokens_held",
        (
            "Prefill computes the whole prompt. After that, which token does each pass take in?",
            "A pass takes in the token that was chosen last, to find out what follows it. Does anybody ask what follows"
            " the very last one?",
            "The prompt and all generated tokens but the last. Mind the request that generated none: it has no last"
            " token to leave out.",
        ),
        section="read-a-trace",
    ),
    Exercise(
        "1.4",
        "The bandwidth ceiling of decode",
        "minillm.metrics:decode_ceiling",
        (
            "Ask first how many bytes one token costs.",
            "Bytes per second divided by bytes per token is tokens per second.",
            "One token reads weight_bytes + kv_bytes.",
        ),
        section="the-arithmetic",
    ),
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
    Exercise(
        "9.1",
        "The roofline",
        "minillm.machine.roofline:attainable_flops",
        (
            "How many operations per second would there be if memory were the only limit?",
            "Bytes per second times operations per byte. And if arithmetic were the only limit?",
            "Both limits hold: the smaller of intensity * machine.bandwidth_bytes_per_s and machine.flops_per_s.",
        ),
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
    ),
)


def find(exercise_id: Any) -> Exercise:
    """The exercise with this id, a string. Raises InputError where there is none."""
    if not isinstance(exercise_id, str):
        raise InputError(f'an exercise\'s id is a text, such as "5.1" with its quotes, and not {exercise_id!r}')
    for exercise in EXERCISES:
        if exercise.id == exercise_id:
            return exercise
    chapter = exercise_id.split(".")[0]
    of_chapter = [e.id for e in EXERCISES if str(e.chapter) == chapter]
    some = f"there are some for {_known_chapters()}"
    known = f"chapter {chapter} has {', '.join(of_chapter)}" if of_chapter else some
    raise InputError(f"there is no exercise {exercise_id!r}: {known}")


def select(what: str) -> tuple[Exercise, ...]:
    """The exercises of a chapter ("5"), or one ("5.2"). Raises InputError where there are none."""
    found = tuple(e for e in EXERCISES if what in (e.id, str(e.chapter)))
    if found:
        return found
    if "." in what:
        return (find(what),)
    raise InputError(f"there are no exercises for chapter {what!r}: there are some for {_known_chapters()}")


def _known_chapters() -> str:
    *others, last = map(str, _CHAPTERS)
    return f"chapters {', '.join(others)} and {last}"
