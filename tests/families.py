"""The model families that the engine runs, each as a tiny random model of `transformers`, and what is checked of it.

One table of data (FAMILIES, CHECKS): `test_families.py` runs each check of each family, and

    python tests/families.py

runs them all and writes what came out into README.md, between its two markers. A tick there is a check that passed.
"""

import functools
import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf_families import largest_difference
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from minillm.config import ModelConfig
from minillm.kv_cache import KVCache, NoCache
from minillm.loading.checkpoint import open_checkpoint
from minillm.loading.hf_config import write_hf_config
from minillm.loading.loader import load_model
from minillm.model import Llama

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- families: written by `python tests/families.py` -->\n", "<!-- end of families -->"

# Every size differs from every other; head_dim is 48 / 6 where a family has no field for it.
SIZES: dict[str, Any] = {
    "vocab_size": 107,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
ORIGINAL = 16  # the context of pre-training, where a rope rule stretches it: short of TOKENS
WINDOW = 7
TOKENS = 28
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 2.5, 3.5, 4.5],
}


@dataclass(frozen=True, eq=False)
class Family:
    """A row of the table: the checkpoints that readers know it by, what it has beyond Llama 2, and a tiny one of it.

    `changes` are arguments of transformers' config class for `model_type`, on top of SIZES; `rope` its
    rope_parameters beside rope_theta.
    """

    names: str
    model_type: str
    beyond: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> Any:
        """As transformers has it."""
        rope = {"rope_type": "default", "rope_theta": 500.0, **self.rope}
        return AutoConfig.for_model(self.model_type, **{**SIZES, **self.changes}, rope_parameters=rope)


def stretched(rule: Mapping[str, Any]) -> dict[str, Any]:
    """A rope rule with the original context that these tiny models have."""
    return {**rule, "original_max_position_embeddings": ORIGINAL}


QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
    "logits_scaling": 0.5,
    "tie_word_embeddings": True,
}

FAMILIES = (
    Family("Llama 1, Llama 2 7B and 13B", "llama", "", {"num_key_value_heads": 6}),
    Family("Llama 2 70B, Llama 3, Yi, TinyLlama", "llama", "grouped-query attention"),
    Family("SmolLM, SmolLM2", "llama", "one table for embedding and head", {"tie_word_embeddings": True}),
    Family(
        "Llama 3.1, 3.2, 3.3, DeepSeek-R1-Distill-Llama",
        "llama",
        "`llama3` rotary scaling",
        {"head_dim": 10},
        stretched(LLAMA3),
    ),
    Family(
        "Llama with all biases", "llama", "`attention_bias`, `mlp_bias`", {"attention_bias": True, "mlp_bias": True}
    ),
    Family(
        "Llama, stretched linearly", "llama", "`linear` rotary scaling", rope={"rope_type": "linear", "factor": 4.0}
    ),
    Family(
        "Llama, stretched as it goes",
        "llama",
        "`dynamic` rotary scaling",
        {"max_position_embeddings": ORIGINAL},
        {"rope_type": "dynamic", "factor": 4.0},
    ),
    Family("Llama, stretched by YaRN", "llama", "`yarn` rotary scaling", rope=stretched(YARN)),
    Family("SmolLM3", "smollm3", "layers without rotary embedding", {"no_rope_layer_interval": 2}),
    Family("Mistral 7B v0.1", "mistral", "a sliding window in all layers", {"sliding_window": WINDOW}),
    Family("Mistral 7B v0.2 and v0.3", "mistral", "grouped-query attention", {"sliding_window": None}),
    Family("Mistral Nemo", "mistral", "its own `head_dim`", {"sliding_window": None, "head_dim": 10}),
    Family("Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen", "qwen2", "biases of queries, keys and values"),
    Family("Qwen2.5 with YaRN", "qwen2", "the same, and `yarn` rotary scaling", rope=stretched(YARN)),
    Family("Qwen2 with `use_sliding_window`", "qwen2", "a sliding window in the upper layers", QWEN_WINDOWS),
    Family("Qwen3", "qwen3", "norms of queries and keys, its own `head_dim`", {"head_dim": 10}),
    Family("Granite 3", "granite", "four multipliers", GRANITE),
    Family("Phi-3 mini 4k", "phi3", "fused projections, a sliding window", {"sliding_window": WINDOW}),
    Family(
        "Phi-3 mini 128k",
        "phi3",
        "fused projections, a sliding window, `longrope` rotary scaling",
        {"sliding_window": 3 * WINDOW, "original_max_position_embeddings": ORIGINAL},
        LONGROPE,
    ),
)


@functools.cache
def directory_of(family: Family) -> Path:
    """The tiny model, saved by transformers; gone when the process is."""
    place = tempfile.TemporaryDirectory(prefix="minillm-family-")
    _PLACES.append(place)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(family.config())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3).add_(0.02)  # biases and norms too, which it would start at 0 and 1
    model.save_pretrained(place.name)
    return Path(place.name)


_PLACES: list[tempfile.TemporaryDirectory[str]] = []


def theirs(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model in transformers, fresh: under two rope rules it remembers what it has seen."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()


def ours(directory: Path, dtype: torch.dtype = torch.float32) -> Llama:
    return load_model(open_checkpoint(directory), dtype=dtype)


def some_ids() -> Tensor:
    """[1, TOKENS]: longer than the window and than the original context."""
    return torch.randint(0, SIZES["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def their_logits(model: Any, sizes: tuple[int, ...]) -> Tensor:
    """[TOKENS, V], computed on a cache in passes of so many tokens."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # before 5.24
    cache = {name: DynamicCache(config=model.config)}
    return torch.cat([model(part, **cache).logits[0] for part in some_ids().split(sizes, dim=1)])


@functools.cache
def expected_logits(family: Family, sizes: tuple[int, ...]) -> Tensor:
    """Those of transformers, in float32."""
    return their_logits(theirs(directory_of(family)), sizes)


@torch.no_grad()
def our_logits(model: Llama, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """[TOKENS, V], computed on a cache in passes of so many tokens."""
    cache, rows = KVCache(model.config, TOKENS, dtype=dtype), []
    for part in some_ids().split(sizes, dim=1):
        rows.append(model.logits(model(part, cache)[0]))
        cache.advance(part.shape[1])
    return torch.cat(rows)


WHOLE, CHUNKS, DECODE = (TOKENS,), (9, 9, 10), (5, *[1] * (TOKENS - 5))


def difference(got: Tensor, expected: Tensor) -> float:
    """The largest one between two sets of logits, which must not be all alike."""
    assert expected.std() > 0.05
    return float((got - expected).abs().max())


def prefill_agrees(family: Family) -> float:
    model, expected = ours(directory_of(family)), expected_logits(family, WHOLE)
    without_cache = model.logits(model(some_ids(), NoCache(model.config))[0])
    return max(difference(our_logits(model, WHOLE), expected), difference(without_cache, expected))


def chunks_agree(family: Family) -> float:
    return difference(our_logits(ours(directory_of(family)), CHUNKS), expected_logits(family, CHUNKS))


def decode_agrees(family: Family) -> float:
    return difference(our_logits(ours(directory_of(family)), DECODE), expected_logits(family, DECODE))


def half_precision_agrees(family: Family) -> float:
    """bfloat16: as near to float32 as transformers is, or half as far again."""
    directory, exact = directory_of(family), expected_logits(family, WHOLE)
    expected = difference(their_logits(theirs(directory, torch.bfloat16), WHOLE).float(), exact)
    got = difference(our_logits(ours(directory, torch.bfloat16), WHOLE, torch.bfloat16), exact)
    return max(0.0, got - 1.5 * expected)


def old_form_agrees(family: Family) -> float:
    """The config as transformers 4 wrote it says the same model."""
    config = json.loads((directory_of(family) / "config.json").read_text(encoding="utf-8"))
    return float(ModelConfig.from_hf(in_old_form(config)) != ModelConfig.from_hf(config))


def in_old_form(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings as transformers 4 wrote them: rope_theta beside rope_scaling, the rule's name under "type"."""
    rope = dict(config["rope_parameters"])
    old = {name: value for name, value in config.items() if name != "rope_parameters"} | {
        "rope_theta": rope.pop("rope_theta")
    }
    kind = rope.pop("rope_type")
    return {**old, "rope_scaling": None if kind == "default" else {"type": kind, **rope}}


def written_config_agrees(family: Family) -> float:
    """What we write as config.json, transformers loads, and computes the same with it."""
    directory = directory_of(family)
    config = open_checkpoint(directory).config
    with tempfile.TemporaryDirectory() as place:
        written = write_hf_config(config, fused=family.model_type == "phi3")
        (Path(place) / "config.json").write_text(json.dumps(written), encoding="utf-8")
        (Path(place) / "model.safetensors").symlink_to(directory / "model.safetensors")
        return difference(their_logits(theirs(Path(place)), WHOLE), expected_logits(family, WHOLE))


@dataclass(frozen=True, eq=False)
class Check:
    """A column of the table. `of` gives how far the two sides are apart, which may be `bound`."""

    title: str
    of: Callable[[Family], float]
    bound: float


CHECKS = (
    Check("prefill", prefill_agrees, 1e-4),
    Check("in chunks", chunks_agree, 1e-4),
    Check("decode", decode_agrees, 1e-4),
    Check("bfloat16", half_precision_agrees, 1e-3),
    Check("old config", old_form_agrees, 0.0),
    Check("written config", written_config_agrees, 1e-5),
)


@functools.cache
def apart(family: Family, check: Check) -> float:
    """How far the two sides of a check are apart; computed once."""
    return check.of(family)


GGUF: Mapping[str, str] = {
    "Llama 1, Llama 2 7B and 13B": "llama 2",
    "Llama 2 70B, Llama 3, Yi, TinyLlama": "mistral",
    "SmolLM, SmolLM2": "smollm2",
    "Llama 3.1, 3.2, 3.3, DeepSeek-R1-Distill-Llama": "llama 3.1",
    "Llama with all biases": "llama with biases",
    "Llama, stretched linearly": "llama with linear scaling",
    "Llama, stretched by YaRN": "llama with yarn",
    "SmolLM3": "smollm3",
    "Mistral 7B v0.2 and v0.3": "mistral",
    "Mistral Nemo": "mistral nemo",
    "Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen": "qwen2",
    "Qwen2.5 with YaRN": "qwen2 with yarn",
    "Qwen3": "qwen3",
    "Granite 3": "granite",
    "Phi-3 mini 4k": "phi3 4k",
    "Phi-3 mini 128k": "phi3 128k, long",
}
"""The file of each family that has one, by its name in gguf_families."""

NOT_IN_A_FILE: Mapping[str, str] = {
    "Llama, stretched as it goes": "unstretched",
    "Mistral 7B v0.1": "no window",
    "Qwen2 with `use_sliding_window`": "no window",
}
"""What llama.cpp's converter leaves out: the file is another model's, which is all that any reader can see."""


@functools.cache
def gguf_cell(family: Family) -> str:
    """A tick where the file gives the logits of transformers, or what is not in it."""
    if family.names in NOT_IN_A_FILE:
        return NOT_IN_A_FILE[family.names]
    return "✓" if largest_difference(GGUF[family.names]) <= 1e-4 else "✗"


def table() -> str:
    """The table in Markdown."""
    titles = [check.title for check in CHECKS]
    lines = [
        f"| checkpoints | `model_type` | beyond Llama 2 | {' | '.join(titles)} | GGUF |",
        "|---|---|---|" + ":-:|" * (len(titles) + 1),
    ]
    for family in FAMILIES:
        ticks = ["✓" if apart(family, check) <= check.bound else "✗" for check in CHECKS]
        cells = [family.names, f"`{family.model_type}`", family.beyond or "nothing", *ticks, gguf_cell(family)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table_in(readme: str) -> str:
    """What stands between the markers."""
    return readme.split(BEGIN)[1].split(END)[0]


def main() -> None:
    """Run every check, and write the table into the README."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    readme = README.read_text(encoding="utf-8")
    old, new = (BEGIN + rows + END for rows in (table_in(readme), table()))
    README.write_text(readme.replace(old, new), encoding="utf-8")
    sys.stdout.write(table_in(README.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
