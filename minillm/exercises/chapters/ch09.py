"""The exercises of chapter 9, *Two resources*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
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
)
