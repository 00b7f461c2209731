"""What llama.cpp computes from the files of `gguf_families`, recorded: it takes ten minutes to build, and CI does not.

    pip install llama-cpp-python && python tests/record_llama_cpp.py        # from the top of the repository

Keys, values and scores are kept in float32 and no flash attention is used, so that files in float32 are computed as we
compute them, to the rounding of sums. With quantized matrices llama.cpp also rounds the activations, to eight bits.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as QType
from gguf_families import FAMILIES, content_of, make_model, random_ids, wide, write_family

RECORDED = Path(__file__).parent / "recorded" / "llama_cpp_families.json"
WATCHED = slice(3, None, 17)
"""Of which token ids the logits are recorded: one in seventeen, and what they have in common with none."""

F32 = 0  # GGML_TYPE_F32
TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
)


@dataclass(frozen=True)
class Case:
    """A file and the positions behind which logits are recorded. `only`: which of its matrices are quantized; those of
    the embedding are looked up and dequantized, with no rounding of activations.
    """

    family: str
    kind: str = "F32"
    only: str = ""
    fuse_qkv: bool = False

    @property
    def name(self) -> str:
        return f"{self.family}, {self.only or 'all'} in {self.kind}" + ", fused" * self.fuse_qkv

    @property
    def exact(self) -> bool:
        """Whether llama.cpp rounds nothing that we do not."""
        return self.kind == "F32" or self.only == "token_embd"

    @property
    def positions(self) -> tuple[int, ...]:
        return FAMILIES[self.family].positions

    @property
    def ids(self) -> list[int]:
        return random_ids(self.positions[-1] + 1)

    def write(self, path: Path) -> Path:
        changes = {**wide(self.family), "tie_word_embeddings": not self.only} if self.kind != "F32" else {}
        model = make_model(self.family, **changes)
        return write_family(path, self.family, model, QType[self.kind], self.only, self.fuse_qkv)


CASES = (
    *(Case(name) for name, family in FAMILIES.items() if family.same_to_llama_cpp),
    *(Case(name, fuse_qkv=True) for name in ("llama with biases", "qwen2")),
    *(Case("smollm2", kind, "token_embd") for kind in TYPES if kind != "F32"),
    *(Case("smollm2", kind) for kind in TYPES if kind != "F32"),
    # the other orders of rows: not interleaved, with norms, fused
    *(Case(family, kind) for family in ("qwen2", "qwen3", "phi3 within its window") for kind in ("Q8_0", "Q4_K")),
)


def llama_cpp_logits(file: Path, ids: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """[positions, vocabulary] logits behind these positions, from one pass over all ids."""
    from minillm.benchmark.llama_cpp_api import llama_cpp

    api = llama_cpp()
    model_params = api.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = api.llama_model_load_from_file(str(file).encode(), model_params)
    assert model, f"llama.cpp cannot load {file}"
    params = api.llama_context_default_params()
    params.n_ctx = 256 if len(ids) <= 256 else 512  # by this size it chooses between Phi-3's two sets of factors
    params.n_batch = params.n_ubatch = params.n_ctx
    params.type_k = params.type_v = F32
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = api.llama_init_from_model(model, params)
    batch = api.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for row, token_id in enumerate(ids):
        batch.token[row], batch.pos[row] = token_id, row
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        batch.logits[row] = row in positions
    assert api.llama_decode(context, batch) == 0, f"llama.cpp refused {file}"
    size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(api.llama_get_logits_ith(context, row), shape=(size,)).copy() for row in positions]
    api.llama_batch_free(batch)
    api.llama_free(context)
    api.llama_model_free(model)
    return np.stack(rows)


def record(case: Case, file: Path) -> dict[str, Any]:
    logits = llama_cpp_logits(case.write(file), case.ids, case.positions)
    watched = [[round(float(logit), 5) for logit in row[WATCHED]] for row in logits]
    return {"content": content_of(file), "top": logits.argmax(axis=1).tolist(), "logits": watched}


def main() -> None:
    import llama_cpp

    with TemporaryDirectory() as scratch:
        cases = {case.name: record(case, Path(scratch) / "model.gguf") for case in CASES}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    version = json.dumps(f"llama-cpp-python {llama_cpp.__version__}")
    RECORDED.write_text(f'{{\n  "by": {version},\n{lines}\n}}\n', encoding="utf-8")
    print(f"{len(cases)} cases, {RECORDED.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
