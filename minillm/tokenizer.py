"""Tokenizer: text to ids and back, and a conversation to ids.

The pipeline itself (normalize, cut into words, merge pairs) is the `tokenizers` library's, in Rust. This file
decides what the library leaves open: which texts may become special tokens, what bytes an id stands for, and
what bad input gets.

Three rules hold everywhere:
- Special tokens in a user's text stay text. Only a chat template can write them.
- `decode(ids)` is the joined output of `StreamDecoder`, for any ids.
- A tokenizer whose pipeline begins each text with a beginning-of-sequence token begins conversations with it too,
  once, whether or not the chat template wrote it.
"""

import json
import operator
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import Normalizer

from minillm.chat_template import ChatTemplate, check_messages, plain_data
from minillm.errors import InputError
from minillm.plain_pipelines import PlainPipeline, ids_of
from minillm.special_text import (
    SpecialTextMarker,
    check_text,
    split_at_unmarked,
    strings_in,
    unused_character,
)
from minillm.token_bytes import ByteLevelCodec, codec_for, count_leading_spaces
from minillm.tokenizer_files import (
    add_declared_tokens,
    add_flagged_bos,
    chat_templates_in,
    read_backend,
    read_settings,
    special_tokens_in,
)

# Spellings that end a text in every SentencePiece vocabulary; Phi-3's files do not declare them special.
_SENTENCE_ENDS = ("<s>", "</s>")


class Tokenizer:
    """A tokenizer and its chat templates. Nothing changes it once it is loaded, so threads may share one."""

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str],
        chat_templates: Mapping[str, str] | None = None,
        ends_of_turn: Iterable[str] = (),
    ) -> None:
        """Wrap `backend`, which is adjusted and belongs to this object from here on.

        Args:
            backend: the pipeline. Truncation and padding, if set, are switched off.
            special_tokens: {"bos_token": "<s>", ...}; each is made special in the backend, and is visible to
                chat templates.
            chat_templates: Jinja sources by name: "default", and perhaps "tool_use".
            ends_of_turn: further tokens after which the model has finished speaking.

        Raises:
            InputError: the kind of decoder is not known, or bos_token or eos_token is not in the vocabulary.
        """
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = dict(special_tokens)
        self._backend = backend
        self._codec = codec_for(backend.decoder)
        self._templates = {name: ChatTemplate(source) for name, source in (chat_templates or {}).items()}
        self._make_special(self.special_tokens.values())
        self._added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in self._added.items() if token.special)
        self.vocab_size = max([backend.get_vocab_size(with_added_tokens=False), *(i + 1 for i in self._added)])
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        ends = (self.eos_token_id, *map(backend.token_to_id, ends_of_turn))
        self.end_ids = frozenset(token_id for token_id in ends if token_id is not None)
        self._marker = SpecialTextMarker(self._added[token_id].content for token_id in self.special_ids)
        self._plain = PlainPipeline(backend)

    # Where tokenizers come from, and where they go.

    @classmethod
    def from_directory(cls, path: Path) -> "Tokenizer":
        """Read tokenizer.json or, where there is none, tokenizer.model, and beside it whichever is there of
        tokenizer_config.json, special_tokens_map.json, chat_template.jinja, chat_template.json and
        additional_chat_templates/*.jinja.

        Raises:
            MissingError: there is neither.
            InputError: a file is not what it should be.
        """
        path = Path(path)
        settings = read_settings(path)
        backend = read_backend(path, settings)
        special_tokens = special_tokens_in(settings, path)
        add_declared_tokens(backend, settings, path)
        add_flagged_bos(backend, settings, special_tokens, path)
        return cls(backend, special_tokens, chat_templates_in(settings, path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build the tokenizer from GGUF metadata: keys to plain Python values, arrays as lists.

        Raises:
            InputError: the metadata lacks something or names a kind of tokenizer that is not known.
        """
        from minillm.loading import gguf_tokenizer

        return cls(
            gguf_tokenizer.backend_from_gguf(metadata),
            gguf_tokenizer.special_tokens_from_gguf(metadata),
            gguf_tokenizer.chat_templates_from_gguf(metadata),
            gguf_tokenizer.ends_of_turn_from_gguf(metadata),
        )

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as `from_directory` and
        `transformers.AutoTokenizer` read them.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(directory / "tokenizer.json"))
        # The class that trusts tokenizer.json; named ones ("GPT2Tokenizer") rebuild the pipeline after their
        # own idea of it.
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.special_tokens,
        }
        if list(self._templates) == ["default"]:
            settings["chat_template"] = self._templates["default"].source
        elif self._templates:
            settings["chat_template"] = [
                {"name": name, "template": template.source} for name, template in self._templates.items()
            ]
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")

    # Text to ids.

    def encode(self, text: str | Any, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, in which special tokens are text like any other.

        Args:
            text: any text without lone surrogates.
            add_special_tokens: let the post-processor add what it adds, such as a beginning-of-sequence
                token.

        Raises:
            InputError: `text` is not a str, not valid Unicode, or holds a character that the vocabulary
                cannot spell.
        """
        check_text(text, "the text")
        self._check_spellable(text)
        return ids_of(self._backend_for(text), text, add_special_tokens)

    def encode_chat(self, messages: Any, add_generation_prompt: bool = True, **template_kwargs: Any) -> list[int]:
        """Render a conversation (see `render_chat`) and return its ids.

        Equal to `transformers`' apply_chat_template, except that

        - control tokens in any of the caller's strings stay text: special tokens, and others that the template
          writes (DeepSeek's "<｜User｜>" is not declared special). The latter may stand in what the assistant said.
          What a template assembles from its own text and a caller's ('<|' + role + '|>') counts as the template's;
        - a beginning-of-sequence token that the pipeline puts before each text, and the template did not write, is
          put there (as the model met it in training, where rendered conversations were encoded like any text).

        Raises:
            InputError: as `render_chat` and `encode`.
        """
        messages, variables = self._checked_chat(messages, template_kwargs)
        rendered = self._render(messages, add_generation_prompt, variables)
        self._check_spellable(rendered)
        if any(self._could_become_special(text, self._chat_marker) for text in strings_in([messages, variables])):
            mark = unused_character([rendered, *strings_in([messages, variables])])
            marked = self._render(
                [self._marker_for(message).mark(message, mark) for message in messages],
                add_generation_prompt,
                self._chat_marker.mark(variables, mark),
            )
            pieces = split_at_unmarked(marked, self._chat_marker.whole, mark)
            ids = self._plain_chat.encode_pieces(pieces, self._added)
        else:
            ids = ids_of(self._backend, rendered)
        return ids if set(self._opening) & set(ids) else [*self._opening, *ids]

    def render_chat(self, messages: Any, add_generation_prompt: bool = True, **template_kwargs: Any) -> str:
        """Return the text that the model's chat template makes of `messages`.

        Args:
            messages: a list of {"role": ..., "content": ...}, oldest first. Contents are text, or whatever
                plain data the template takes.
            add_generation_prompt: end with the opening of the assistant's answer.
            template_kwargs: other variables that the template reads, such as tools=[...].

        Raises:
            InputError: there is no chat template, the messages are not a conversation, or the template
                refuses them.
        """
        plain_messages, variables = self._checked_chat(messages, template_kwargs)
        return self._render(plain_messages, add_generation_prompt, variables)

    # Ids to text.

    def pad_vocabulary(self, vocab_size: int) -> None:
        """Accept ids up to the size of the model's own table, often rounded up; the ids added spell nothing."""
        self.vocab_size = max(self.vocab_size, vocab_size)

    def decode(self, ids: Iterable[int] | Any, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD, as in streaming.

        Raises:
            InputError: an id is outside the vocabulary, or not an integer.
        """
        data = b"".join(
            self.id_to_bytes(token_id) for token_id in ids if not (skip_special_tokens and token_id in self.special_ids)
        )
        return data[count_leading_spaces(data, self.leading_spaces_dropped) :].decode(errors="replace")

    def id_to_bytes(self, token_id: int | Any) -> bytes:
        """Return the bytes that `token_id` stands for, special or not; b"" for an id that the vocabulary
        leaves unused.

        Raises:
            InputError: the id is outside the vocabulary.
        """
        token = self.id_to_token(token_id)
        added = self._added.get(token_id)
        if added is not None:
            return self._codec.to_bytes(added.content, is_added=True)
        return b"" if token is None else self._codec.to_bytes(token, is_added=False)

    @property
    def leading_spaces_dropped(self) -> int:
        """How many spaces at the start of a decoded text are not the text's own: at most 1 for
        SentencePiece, else 0.
        """
        return self._codec.leading_spaces_dropped

    # The vocabulary.

    def id_to_token(self, token_id: int | Any) -> str | None:
        """Return the token as the vocabulary spells it ("Ġthe"), or None for an id that it leaves unused.

        Raises:
            InputError: the id is outside the vocabulary.
        """
        try:
            index = operator.index(token_id)
        except TypeError:
            raise InputError(f"token id {token_id!r} is not an integer") from None
        if not 0 <= index < self.vocab_size:
            raise InputError(f"token id {index} is outside the vocabulary of {self.vocab_size} tokens")
        return self._backend.id_to_token(index)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it, or None."""
        return self._backend.token_to_id(token)

    @cached_property
    def characters_per_token(self) -> int | None:
        """How many characters of a text one token can stand for; None where a normalizer may shorten the text."""
        if self._normalizer is not None:
            return None
        return max(len(token) for token in self._backend.get_vocab(with_added_tokens=True))

    @property
    def has_chat_template(self) -> bool:
        """Whether `render_chat` and `encode_chat` can be used."""
        return bool(self._templates)

    @property
    def chat_template(self) -> str | None:
        """The source of the default chat template, if there is one."""
        template = self._templates.get("default")
        return template.source if template else None

    # How it is done.

    def _make_special(self, tokens: Iterable[str]) -> None:
        """Mark tokens of the vocabulary as special, where tokenizer.json had them as ordinary."""
        special = {token.content for token in self._backend.get_added_tokens_decoder().values() if token.special}
        known = [token for token in tokens if self._backend.token_to_id(token) is not None]
        missing = [AddedToken(token, special=True, normalized=False) for token in known if token not in special]
        if missing:
            self._backend.add_special_tokens(missing)

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        if token is None:
            return None
        token_id = self._backend.token_to_id(token)
        if token_id is None:
            raise InputError(
                f"{name} is {token!r}, which is not in the tokenizer's vocabulary; correct tokenizer_config.json"
            )
        return token_id

    def _backend_for(self, text: str) -> Backend:
        """The backend that leaves special tokens in `text` alone: the common one, unless there are any."""
        return self._plain.first if self._could_become_special(text, self._marker) else self._backend

    def _could_become_special(self, text: str, marker: SpecialTextMarker) -> bool:
        if marker.is_needed(text):
            return True
        normalized = self._normalizer.normalize_str(text) if self._normalizer else text
        return normalized != text and marker.is_needed(normalized)

    @cached_property
    def _control_texts(self) -> frozenset[str]:
        """The tokens that only a template may write: special ones, and added ones that stand in a template."""
        sources = [template.source for template in self._templates.values()]
        return frozenset(
            token.content
            for token_id, token in self._added.items()
            if token_id in self.special_ids
            or token.content in _SENTENCE_ENDS
            or (not token.content.isspace() and any(token.content in source for source in sources))
        )

    @cached_property
    def _chat_marker(self) -> SpecialTextMarker:
        return SpecialTextMarker(self._control_texts)

    @cached_property
    def _plain_chat(self) -> PlainPipeline:
        all_special = all(token_id in self.special_ids for token_id in map(self.token_to_id, self._control_texts))
        return self._plain if all_special else PlainPipeline(self._backend, self._control_texts)

    def _marker_for(self, message: dict[str, Any]) -> SpecialTextMarker:
        """What is guarded in a message: the assistant may have said "<think>", which is a token but not special."""
        return self._marker if message.get("role") == "assistant" else self._chat_marker

    @cached_property
    def _opening(self) -> list[int]:
        """The ids that the pipeline puts before each text: a beginning-of-sequence token, or nothing."""
        whole, text = (self._backend.encode("a", add_special_tokens=added).ids for added in (True, False))
        return next((whole[:at] for at in range(len(whole)) if whole[at : at + len(text)] == text), [])

    @cached_property
    def _normalizer(self) -> Normalizer | None:
        """The pipeline's normalizer, if special tokens are looked for in its output."""
        matched = any(token.special and token.normalized for token in self._added.values())
        return self._backend.normalizer if matched else None

    @cached_property
    def _unspellable_bytes(self) -> bytes:
        """Bytes for which a byte-level vocabulary has no token, so that its pipeline would drop them
        without a word.
        """
        if not isinstance(self._codec, ByteLevelCodec) or getattr(self._backend.model, "unk_token", None):
            return b""
        alphabet = self._codec.alphabet
        return bytes(byte for mark, byte in alphabet.items() if self._backend.token_to_id(mark) is None)

    def _check_spellable(self, text: str) -> None:
        data = text.encode()
        if len(data.translate(None, self._unspellable_bytes)) == len(data):
            return
        lost = next(c for c in text if any(byte in self._unspellable_bytes for byte in c.encode()))
        raise InputError(
            f"the text holds {lost!r} (U+{ord(lost):04X}), for which the model's vocabulary has no token; leave it out"
        )

    def _checked_chat(self, messages: Any, variables: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        check_messages(messages)
        plain = [plain_data(message, f"messages[{index}]") for index, message in enumerate(messages)]
        return plain, {name: plain_data(value, name) for name, value in variables.items()}

    def _render(self, messages: list[Any], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        rendered = self._template_for(variables).render(
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self.special_tokens,
            variables=variables,
        )
        check_text(rendered, "what the chat template wrote")
        return rendered

    def _template_for(self, variables: Mapping[str, Any]) -> ChatTemplate:
        name = "tool_use" if variables.get("tools") is not None and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise InputError("the model has no chat template; use it raw: generate instead of chat, or --raw")
        return template
