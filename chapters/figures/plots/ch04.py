"""Plots of chapter 4."""

from collections.abc import Callable

from themed_plot import ACCENTS, MUTED, plot_of, themed_svg

from minillm.machine.roofline import Machine, forward_flops, prefill_work, shortest_seconds, visible_pairs
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME


def shortest_prefill_of_llama_3_8b() -> str:
    """The least time that an H100 needs for a prompt, by its length, and the parts of weights and attention in it."""
    h100, llama = find("h100"), BY_NAME["llama-3-8b"].shape
    machine = Machine(h100.bandwidth_bytes_per_s, h100.flops("bfloat16"))
    per_pair = 4 * llama.num_attention_heads * llama.head_dim * llama.num_hidden_layers
    lengths = [2 ** (step / 4) for step in range(4 * 17 + 1)]
    tokens = [round(length) for length in lengths]
    whole = [shortest_seconds(prefill_work(llama, n), machine) for n in tokens]
    attention = [per_pair * visible_pairs(n) / machine.flops_per_s for n in tokens]
    products = [forward_flops(llama, 1, n) / machine.flops_per_s for n in tokens]
    products = [both - part for both, part in zip(products, attention, strict=True)]
    with plot_of(height=360) as figure:
        axes = figure.subplots()
        axes.loglog(tokens, products, color=ACCENTS[2], linewidth=1.5, linestyle="--")
        axes.loglog(tokens, attention, color=ACCENTS[1], linewidth=1.5, linestyle="--")
        axes.loglog(tokens, whole, color=ACCENTS[0])
        axes.set(xlim=(1, 131072), ylim=(5e-4, 20))
        axes.set_xticks([1, 16, 317, 2000, 53250], ["1", "16", "317", "2,000", "53,250"])
        axes.set_yticks([1e-3, 1e-2, 0.1, 1, 10], ["1 ms", "10 ms", "100 ms", "1 s", "10 s"])
        axes.minorticks_off()
        axes.set_xlabel("tokens in the prompt")
        axes.set_title("the least time to the first token", fontsize=14)
        axes.annotate("reading the weights", (2, 5.8e-3), color=MUTED, fontsize=13)
        axes.annotate("weights' products", (3, 8.5e-4), color=ACCENTS[2], fontsize=13)
        axes.annotate("attention", (16000, 1.6e-2), color=ACCENTS[1], fontsize=13)
        return themed_svg(
            figure,
            title="The least time to the first token of Llama-3-8B on an H100, by the length of the prompt",
            desc="A curve over 1 to 131,072 tokens, on logarithmic axes. It is flat at 4.5 milliseconds up to 317 "
            "tokens, where reading the weights is the limit; then it rises with the operations, to 29 milliseconds at "
            "2,000 tokens. Below it, the part of the products with the weights is a straight line, and that of "
            "attention a line twice as steep, which crosses it at 53,250 tokens.",
        )


PLOTS: dict[str, Callable[[], str]] = {"prefill-least-time.svg": shortest_prefill_of_llama_3_8b}
