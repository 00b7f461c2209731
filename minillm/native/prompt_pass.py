"""The C++ pass of a prompt, prompt.cpp, as the engine sees it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError
from minillm.kv_cache import Cache
from minillm.model import Llama
from minillm.native.build import native_library
from minillm.native.described_model import DescribedModel, has_tiles
from minillm.native.matrix import address

STRIP = 16
"""Tokens that are computed together; what a sequence's last strip lacks is computed all the same."""

SPARE_STRIPS = 2
"""So many may be nearly empty: for a few tokens, the library takes twice as long and more (chapter 14 measures it)."""

TOKENS_PER_STRIP = {torch.bfloat16: 8, torch.float32: 12}
"""What the others have to hold, by what is multiplied: the library computes no empty places, and no attention for them.
In tiles of bfloat16, an empty place costs less than in float32."""

MULTIPLE = 32
"""What the sizes of a model have to be a multiple of: the columns that a product of tiles takes at a time."""


def floats_are_fast(dtype: torch.dtype) -> bool:
    """Whether products of float32 vectors are faster than PyTorch's, for a model of this dtype on this processor."""
    return bool(native_library().floats_are_fast(dtype == torch.bfloat16))


class NativePromptPass:
    """A `PromptPass` on a CPU; see there. It multiplies tiles of bfloat16 numbers (AMX), where the model is in bfloat16
    and the processor has them, else vectors of float32.

    The model's tensors must stay where they are. Raises MissingError where the kernels cannot be compiled, InputError
    for a model that they are not made for; the sentence says why.
    """

    def __init__(self, model: Llama) -> None:
        self._described = DescribedModel(model)
        library, self._model, config = native_library(), model, model.config
        if any(size % MULTIPLE for size in (config.hidden_size, config.intermediate_size, config.head_dim)):
            raise InputError(f"the C++ pass of a prompt needs a model whose sizes are multiples of {MULTIPLE}")
        in_tiles = model.dtype == torch.bfloat16 and has_tiles()
        if not in_tiles and not floats_are_fast(model.dtype):
            raise InputError(f"on this processor, PyTorch is faster with prompts in {model.dtype}")
        self._layers = library.prompt_in_tiles if in_tiles else library.prompt_in_floats
        self._dtype = torch.bfloat16 if in_tiles else torch.float32

    def hidden(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"] | None:
        """Hidden states after the final norm, in the model's dtype.

        It takes any number of tokens, unless they are of so many sequences that most strips would be half empty.
        """
        where = self._described.placement(ids, cache)
        if where is None:
            return None
        strips = sum(-(-count // STRIP) for count in where.counts)
        if strips > SPARE_STRIPS + ids.numel() // TOKENS_PER_STRIP[self._dtype]:
            return None
        x = self._model.embed_tokens(ids).to(self._dtype).contiguous()  # [B, T, E]
        q_len, half_dim = ids.shape[1], self._model.config.head_dim // 2
        angles = self._model.angles(cache.positions(q_len), cache.length + q_len)  # 2 x [B, 1, T, D/2]
        cos, sin = (table.contiguous() for table in angles)
        self._described.run(self._layers, where, x, (address(cos), address(sin), half_dim))
        return x.to(self._model.dtype)
