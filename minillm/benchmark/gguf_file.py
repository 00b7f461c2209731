"""The weights of a checkpoint as a file for llama.cpp, which then computes with the same numbers as we do.

Matrices in float32, bfloat16 or float16, vectors (norms, biases) in float32, as llama.cpp's own converter writes them.
What is quantized is quantized by llama.cpp itself, and every matrix in the format in which ours has it (`pure`, and
the ends by their names): it would otherwise keep some in a wider one, and the bytes per token would not be those of
ours. No tokenizer is written: the benchmark feeds ids.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from minillm.benchmark.llama_cpp_api import llama_cpp
from minillm.benchmark.plan import PLAIN_TYPES
from minillm.errors import InputError
from minillm.machine.formats import FORMATS

EMBEDDING, HEAD = "token_embd.weight", "output.weight"


@dataclass(frozen=True)
class WeightBytes:
    """Of a GGUF file: bytes of all tensors, bytes that a pass reads of them, and the size of a head."""

    all: int
    per_pass: int
    head_dim: int


def gguf_weight_bytes(path: str | Path) -> WeightBytes:
    """A tied table is read as the head; one that has its own head beside it is only looked up."""
    reader = gguf.GGUFReader(path)
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in reader.tensors}
    looked_up = sizes[EMBEDDING] if HEAD in sizes else 0
    architecture = reader.fields["general.architecture"].contents()
    stated = {key: reader.get_field(f"{architecture}.{key}") for key in ("attention.key_length", "embedding_length")}
    heads = reader.get_field(f"{architecture}.attention.head_count")
    assert heads is not None, "a file without heads was loaded by nobody"
    length, hidden = stated["attention.key_length"], stated["embedding_length"]
    head_dim = length.contents() if length is not None else hidden.contents() // heads.contents()  # pyright: ignore
    total = sum(sizes.values())
    return WeightBytes(total, total - looked_up, int(head_dim))


def write_gguf(checkpoint: Any, file: Path, dtype: str) -> None:
    """Write a `Checkpoint` with its matrices in `dtype` (a key of PLAIN_TYPES), one tensor at a time."""
    import torch

    from minillm.device import DTYPES
    from minillm.loading.checkpoint import HEAD as HF_HEAD
    from minillm.loading.checkpoint import read
    from minillm.loading.gguf import PERMUTED, gguf_name, permute
    from minillm.loading.gguf_config import write_gguf_config
    from minillm.loading.gguf_rope import ROPE_FACTORS, rope_factors

    config, source = checkpoint.config, checkpoint.tensors
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in write_gguf_config(config).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(key, value)  # pyright: ignore[reportArgumentType]
    names = [name for name in source.names() if not (name == HF_HEAD and config.tie_word_embeddings)]
    for name in names:
        shape = source.shape(name)
        kind, wide = (PLAIN_TYPES[dtype], DTYPES[dtype]) if len(shape) > 1 else ("F32", torch.float32)
        count = int(np.prod(shape))
        kinds = gguf.GGMLQuantizationType
        writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.float32), count * wide.itemsize, kinds[kind])
    factors = rope_factors(config)
    if factors is not None:
        writer.add_tensor_info(ROPE_FACTORS, [len(factors)], np.dtype(np.float32), 4 * len(factors))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in names:
        rows = read(source, name)
        if any(mark in name for mark in PERMUTED):
            rows = permute(rows, config.head_dim)
        rows = rows.to(DTYPES[dtype] if rows.dim() > 1 else torch.float32).contiguous()
        writer.write_tensor_data(rows.view(torch.uint8).numpy())
    if factors is not None:
        writer.write_tensor_data(np.array(factors, dtype=np.float32))
    writer.close()


def quantize_gguf(source: Path, file: Path, kind: str, threads: int) -> None:
    """Quantize every matrix to `kind` ("Q8_0", "Q4_1", "Q4_0") by llama.cpp, embedding and head to Q8_0, as ours are
    (`weight_formats.QUANTIZE`). Raises InputError where it fails.

    Its blocks hold 32 weights of a row: a row that is no multiple of that cannot be cut into them.
    """
    api = llama_cpp()
    params = api.llama_model_quantize_default_params()
    params.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread, params.pure = threads, True
    params.token_embedding_type = params.output_tensor_type = api.GGML_TYPE_Q8_0
    if api.llama_model_quantize(str(source).encode(), str(file).encode(), params):
        block = FORMATS[kind.lower()].block
        raise InputError(f"llama.cpp cannot quantize this model to {kind} (are its rows multiples of {block}?)")
