"""Pipelines beside a tokenizer's own, to which chosen tokens are text like any other.

They are copies, made when first needed: turning the switch of the pipeline itself for a moment would turn it for
other threads too.
"""

import json
import re
from collections.abc import Collection, Mapping
from functools import cached_property

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

LONG_CHARACTERS = 8_192
"""From here on a text is worth what it costs to let other threads run meanwhile."""


def ids_of(backend: Backend, text: str, add_special_tokens: bool = False) -> list[int]:
    """The ids that the pipeline makes of a text.

    `encode` holds Python's lock, which is a second for each megabyte; the call for several texts lets go of it, and
    without the places of tokens, which nobody asks for here, takes half the time.
    """
    if len(text) < LONG_CHARACTERS:
        return backend.encode(text, add_special_tokens=add_special_tokens).ids
    return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


class PlainPipeline:
    """A copy of `backend` that finds neither special tokens nor those of `texts` in what it reads."""

    def __init__(self, backend: Backend, texts: Collection[str] = ()) -> None:
        self._source = backend
        self._texts = frozenset(texts)

    @cached_property
    def first(self) -> Backend:
        """For text that begins the input."""
        return self._copy(self._source.to_str())

    @cached_property
    def later(self) -> Backend:
        """For text behind a special token, before which some SentencePiece pipelines put no "▁"."""
        pipeline = self._source.to_str()
        continuing = re.sub(r'("prepend_scheme":\s*)"first"', r'\1"never"', pipeline)
        return self.first if continuing == pipeline else self._copy(continuing)

    def _copy(self, pipeline: str) -> Backend:
        if self._texts:
            described = json.loads(pipeline)
            for token in described["added_tokens"]:
                token["special"] = token["special"] or token["content"] in self._texts
            pipeline = json.dumps(described)
        copy = Backend.from_str(pipeline)
        copy.encode_special_tokens = True
        return copy

    def encode_pieces(self, pieces: list[str], added: Mapping[int, AddedToken]) -> list[int]:
        """Encode [text, token, text, token, ..., text]: the tokens as what they are, the texts as text.

        Args:
            pieces: as `special_text.split_at_unmarked` cuts a rendered conversation.
            added: the backend's added tokens by id; those declared so swallow the white space beside them.
        """
        token_ids = [self._source.token_to_id(token) for token in pieces[1::2]]
        ids: list[int] = []
        for index, text in enumerate(pieces[::2]):
            before = token_ids[index - 1] if index > 0 else None
            after = token_ids[index] if index < len(token_ids) else None
            if before is not None:
                ids.append(before)
                text = text.lstrip() if added[before].rstrip else text
            if after is not None and added[after].lstrip:
                text = text.rstrip()
            ids += ids_of(self.later if index else self.first, text)
        return ids
