"""Which engines are set beside ours in a mode, and the files that they read: made from the same weights."""

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from minillm.benchmark.engine import FLASH_OFF, LLAMA_CPP, MINILLM, PEERS, TRANSFORMERS, EngineSpec
from minillm.benchmark.gguf_file import quantize_gguf, write_gguf
from minillm.benchmark.llama_cpp_api import require_llama_cpp
from minillm.benchmark.plan import NOT_QUANTIZED, PLAIN_TYPES, Mode
from minillm.errors import InputError
from minillm.loading import Checkpoint
from minillm.loading.checkpoint import EMBEDDING


def parse_peers(text: str | None) -> tuple[str, ...]:
    """Names, from "transformers,llama.cpp". Raises InputError for one that is not known or not installed."""
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in PEERS:
            raise InputError(f"--compare knows no engine {name[:100]!r}: it knows {', '.join(PEERS)}")
    if TRANSFORMERS in names and importlib.util.find_spec("transformers") is None:
        raise InputError('--compare transformers needs it installed: pip install "minillm[test]"')
    if LLAMA_CPP in names:
        require_llama_cpp()
    return names


class Lineup:
    """The engines of each mode. Files for llama.cpp are written into `scratch` when they are first needed."""

    def __init__(self, ours: EngineSpec, checkpoint: Checkpoint, peers: Collection[str], scratch: Path) -> None:
        self.ours, self.checkpoint, self.peers, self.scratch = ours, checkpoint, peers, scratch

    def specs(self, mode: Mode) -> dict[str, EngineSpec]:
        """Ours first; then those peers that compute with as many bits per weight.

        llama.cpp takes part twice with each file, with and without flash attention: on some processors the one way
        decodes twice as fast and the other prefills faster, so that its defaults alone would be no fair measure of it.
        """
        quantize = None if mode.quantize == NOT_QUANTIZED else mode.quantize
        specs = {MINILLM: self._spec(MINILLM, self.ours.path, mode.dtype, quantize)}
        if TRANSFORMERS in self.peers and quantize is None:
            specs[TRANSFORMERS] = self._spec(TRANSFORMERS, self.ours.path, mode.dtype)
        if LLAMA_CPP in self.peers:
            for kind, file in self._files(mode).items():
                spec = self._spec(LLAMA_CPP, str(file), mode.dtype)
                specs[f"{LLAMA_CPP} {kind}"] = spec
                specs[f"{LLAMA_CPP} {kind} {FLASH_OFF}"] = replace(spec, flash_off=True)
        return specs

    def unquantized(self, mode: Mode) -> Mode:
        """The mode in which engines of a quantized one can be compared number by number: that of the file from which
        llama.cpp's was quantized.
        """
        return mode if mode.quantize == NOT_QUANTIZED else Mode(self._stored_dtype())

    def _files(self, mode: Mode) -> Mapping[str, Path]:
        if mode.quantize == "file":
            return {"file": Path(self.ours.path)}
        if mode.quantize == NOT_QUANTIZED:
            return {PLAIN_TYPES[mode.dtype]: self._plain(mode.dtype)}
        return {kind: self._quantized(kind) for kind in mode.gguf_types}

    def _plain(self, dtype: str) -> Path:
        file = self.scratch / f"{PLAIN_TYPES[dtype]}.gguf"
        if not file.exists():
            write_gguf(self.checkpoint, file, dtype)
        return file

    def _quantized(self, kind: str) -> Path:
        file = self.scratch / f"{kind}.gguf"
        if not file.exists():
            quantize_gguf(self._plain(self._stored_dtype()), file, kind, self.ours.threads)
        return file

    def _stored_dtype(self) -> str:
        """bfloat16 where that loses nothing, float32 elsewhere."""
        stored = next(iter(self.checkpoint.tensors.pieces(EMBEDDING))).dtype
        return "bfloat16" if stored == torch.bfloat16 else "float32"

    def _spec(self, engine: str, path: str, dtype: str, quantize: str | None = None) -> EngineSpec:
        if engine != MINILLM:
            return EngineSpec(engine, path, self.ours.device, dtype, self.ours.threads)
        ours = self.ours
        return EngineSpec(engine, path, ours.device, dtype, ours.threads, quantize, ours.kv_dtype, ours.compile)
