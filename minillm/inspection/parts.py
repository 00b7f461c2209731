"""Parameters by part: from the tensors that are stored, or, where they are not known, from the config."""

import re
from collections.abc import Iterable

from minillm.config import ModelConfig
from minillm.inspection.expected import expected_shapes
from minillm.inspection.stored import StoredTensor

EMBEDDING, ATTENTION, MLP, NORMS, HEAD, OTHER = "embedding", "attention", "MLP", "norms", "head", "other"
PARTS = (EMBEDDING, ATTENTION, MLP, NORMS, HEAD, OTHER)

# Hugging Face's names, then GGUF's. The first that matches decides: an attention's norm is a norm.
_PATTERNS = (
    (NORMS, r"norm|(^|\.)ln_|layernorm"),
    (EMBEDDING, r"embed|(^|\.)wte\.|token_embd"),
    (HEAD, r"lm_head|^output\.(weight|bias)$"),
    (ATTENTION, r"attn|attention"),
    (MLP, r"mlp|ffn|feed_forward|expert|block_sparse_moe"),
)
# Computed from the configuration, and stored all the same.
COMPUTED = re.compile(r"rotary_emb\.inv_freq$|^rope_(freqs|factors)|^rope_factors_(long|short)")


def part_of(name: str) -> str:
    """The part that a tensor belongs to, by its name."""
    return next((part for part, pattern in _PATTERNS if re.search(pattern, name)), OTHER)


def count_tensors(tensors: Iterable[StoredTensor], tied: bool) -> dict[str, int]:
    """Numbers by part. A head that is stored although it is the embedding's table is not counted twice."""
    counts: dict[str, int] = dict.fromkeys(PARTS, 0)
    for tensor in tensors:
        part = part_of(tensor.name)
        if not COMPUTED.search(tensor.name) and not (tied and part == HEAD):
            counts[part] += tensor.numbers
    return counts


def count_config(config: ModelConfig) -> dict[str, int]:
    """Numbers by part, of a model that this engine runs."""
    shapes = expected_shapes(config).items()
    return count_tensors((StoredTensor(name, shape, "", None) for name, shape in shapes), config.tie_word_embeddings)
