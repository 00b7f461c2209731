"""A model of a well-known shape with random weights: as fast as the real one, and nothing to download.

It is written as a bfloat16 safetensors directory, in shards of a layer each, so that a large model is never in memory
as a whole. It has no tokenizer, for the benchmark feeds ids.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.loading.files import write_json
from minillm.loading.hf_config import write_hf_config
from minillm.loading.safetensors import INDEX
from minillm.machine.shape import ModelShape, shape_of
from minillm.machine.well_known import BY_NAME
from minillm.model import Llama

STD = 0.02
"""Standard deviation of the weights: what such models are initialised with. Nothing overflows in any dtype."""


def random_config(name: str) -> ModelConfig:
    """The config of a well-known shape. Raises InputError for a name that is not known, or a shape that is no Llama."""
    known = BY_NAME.get(name.lower())
    if known is None:
        raise InputError(f"--random knows no shape {name[:100]!r}: `minillm fit --models` lists the names")
    return config_of(known.name, known.shape)


def config_of(name: str, shape: ModelShape) -> ModelConfig:
    """The config of a shape. Raises InputError where it has what a Llama has not."""
    config = ModelConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        tie_word_embeddings=shape.tie_word_embeddings,
    )
    if shape_of(config) != shape:
        raise InputError(
            f"{name} is no Llama (it has biases, norms of queries, a sliding window or experts): take llama-3.2-1b, say"
        )
    return config


def write_random_model(config: ModelConfig, directory: Path, seed: int = 0) -> None:
    """Write the directory: norms of ones, everything else normal with a standard deviation of STD."""
    slots = Llama(config, device="meta").checkpoint_slots()
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", {**write_hf_config(config), "torch_dtype": "bfloat16"})
    shards: dict[str, list[str]] = {}
    for name in slots:
        shards.setdefault(".".join(name.split(".")[:3]), []).append(name)  # "model.layers.7", and one for each other
    generator = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards.values()):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(_random_tensors({name: tuple(slots[name].shape) for name in names}, generator), directory / file)
        weight_map |= dict.fromkeys(names, file)
    write_json(directory / INDEX, {"metadata": {}, "weight_map": weight_map})


def _random_tensors(shapes: Mapping[str, tuple[int, ...]], generator: torch.Generator) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, shape in shapes.items():
        tensor = torch.ones(shape, dtype=torch.bfloat16)
        tensors[name] = tensor.normal_(0.0, STD, generator=generator) if len(shape) > 1 else tensor
    return tensors
