"""The C++ decode pass, decode.cpp, as the engine sees it."""

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError
from minillm.kv_cache import Cache
from minillm.model import Llama
from minillm.native.build import native_library
from minillm.native.described_model import DescribedModel
from minillm.native.matrix import address, matrix_of

MOST_ROWS = 64
"""Sequences at a time. For more, the library's product of whole matrices is as fast."""

POSITIONS_AT_A_TIME = 256
"""Of the rotary tables: a few torch calls for 256 steps, in the place of as many for each."""


class NativeDecodePass:
    """A `DecodePass` on the CPU; see there. One pass runs at a time, on all of torch's threads.

    The model's tensors must stay where they are. Raises MissingError where the kernels cannot be compiled, InputError
    for a model that they are not made for; the sentence says why.
    """

    def __init__(self, model: Llama) -> None:
        self._described = DescribedModel(model)
        self._library, self._model = native_library(), model
        self._table, self._head = (matrix_of(end.weight) for end in (model.embed_tokens, model.lm_head))
        self._angles_of: Sequence[int] = ()  # the positions that `_cos` and `_sin` are for

    def hidden(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"] | None:
        """Hidden states after the final norm, float32.

        It takes one token each for up to 64 sequences, on a cache that has a place for them. The ids are read
        where they lie, which has to be the memory of the CPU; what is no id is left to PyTorch to refuse.
        """
        readable = ids.numel() <= MOST_ROWS and ids.is_cpu and ids.dtype in (torch.int64, torch.int32)
        where = self._described.placement(ids, cache) if readable else None
        if where is None or ids.numel() != len(where.positions):
            return None
        x = self._embedded(ids)  # [B, T, E]
        self._described.run(self._library.decode_layers, where, x, self._angles(where.positions))
        return x

    def logits(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"] | None:
        """The scores of up to 64 rows, float32."""
        width = hidden.shape[-1]
        rows = hidden.numel() // width
        if rows > MOST_ROWS or width != self._head.columns:
            return None
        x = hidden.float().contiguous()  # [..., E]
        scores = torch.empty(*hidden.shape[:-1], self._head.rows, dtype=torch.float32)  # [..., V]
        self._library.multiply_rows(ctypes.byref(self._head), address(x), rows, address(scores))
        return scores

    def _embedded(self, ids: Int[Tensor, "batch q_len"]) -> Float[Tensor, "batch q_len hidden"]:
        """The embeddings, float32. One call in the place of three or more by torch, which cost what a layer does."""
        if ids.dtype != torch.int64 or not ids.is_contiguous():
            ids = ids.long().contiguous()
        x = torch.empty(*ids.shape, self._table.columns, dtype=torch.float32)  # [B, T, E]
        if not self._library.embed(ctypes.byref(self._table), address(ids), ids.numel(), address(x)):
            raise InputError(f"a token id is outside the vocabulary of {self._table.rows} tokens")
        return x

    def _angles(self, positions: Sequence[int]) -> tuple[ctypes.c_void_p, ctypes.c_void_p, int]:
        """Where the cosines and the sines of the positions lie, [head_dim / 2] each, and how far apart they are.

        Where all are the same, as in a sequence alone, tables for many steps are made at a time.
        """
        position = positions[0]
        row, apart = 0, self._model.config.head_dim // 2
        if all(other == position for other in positions):
            row, apart = position % POSITIONS_AT_A_TIME, 0
            start = position - row
            positions = range(start, start + POSITIONS_AT_A_TIME)
        if positions != self._angles_of:
            cos, sin = self._model.angles(torch.tensor([positions]), max(positions) + 1)  # [1, 1, positions, D/2]
            self._cos, self._sin, self._angles_of = cos.contiguous(), sin.contiguous(), positions
        offset = row * self._cos.stride(2) * self._cos.itemsize
        cos, sin = (ctypes.c_void_p(table.data_ptr() + offset) for table in (self._cos, self._sin))
        return cos, sin, apart
