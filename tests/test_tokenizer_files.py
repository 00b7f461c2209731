"""Tokenizers read from directories: the forms of tokenizer.json, and the files beside it, against `transformers`."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from llama_cpp_tokens import RECORD, metadata_of
from small_tokenizers import SPECIALS, byte_level_backend, sentencepiece_backend, write_model
from text_samples import SAMPLES
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from minillm.detokenizer import StreamDecoder
from minillm.errors import InputError, MissingError
from minillm.tokenizer import Tokenizer

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
TEXTS = [text for text in SAMPLES if len(text) < 90 and "<unk>" not in text]
HI = [{"role": "user", "content": "hi"}]


def vocabulary(kind: str, **more: Any) -> Backend:
    """The pipeline of a recorded vocabulary, to change at will."""
    keys = [key for key in ("tokens", "merges", "scores", "token_type") if key in RECORDED[kind]]
    metadata = metadata_of({key: RECORDED[kind][key] for key in keys}, **more)
    return Backend.from_str(Tokenizer.from_gguf(metadata)._backend.to_str())


def metaspace(scheme: str) -> Backend:
    """The newer form of SentencePiece pipelines: no normalizer; spaces are marked by the pre-tokenizer."""
    backend = vocabulary("sentencepiece")
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    return backend


def llama3() -> Backend:
    backend = vocabulary("byte_level", pre="llama-bpe", add_bos_token=False)
    bos = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos])
    return backend


def deepseek() -> Backend:
    backend = vocabulary("byte_level", pre="deepseek-coder")
    backend.normalizer = normalizers.Sequence([])
    backend.add_tokens([AddedToken("<｜User｜>", normalized=False), AddedToken("<think>", normalized=True)])
    return backend


FORMS = {
    "Llama 1 and 2, Mistral, TinyLlama: Prepend and Replace": lambda: vocabulary("sentencepiece"),
    "Yi: Replace, no space before": lambda: vocabulary("sentencepiece", add_space_prefix=False, add_bos_token=False),
    "Metaspace, first": lambda: metaspace("first"),
    "Metaspace, always": lambda: metaspace("always"),
    "Metaspace, never": lambda: metaspace("never"),
    "Llama 3": llama3,
    "Qwen": lambda: vocabulary("byte_level", pre="qwen2"),
    "Nemo": lambda: vocabulary("byte_level", pre="tekken"),
    "Granite 3": lambda: vocabulary("byte_level", pre="refact"),
    "DeepSeek": deepseek,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_encodes_and_decodes_as_in_transformers_and_streams_alike(tmp_path: Path, form: str) -> None:
    write_model(tmp_path, FORMS[form](), {"tokenizer_class": "PreTrainedTokenizerFast"})
    ours, theirs = Tokenizer.from_directory(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        for skip in (True, False):
            decoded = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip) == decoded
            stream = StreamDecoder(ours, skip)
            assert "".join(map(stream.add, ids)) + stream.flush() == decoded


# --- BOS


@pytest.mark.parametrize("written_as", ["post-processor", "flag", "both"])
@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"])
def test_bos_comes_once_in_texts_and_chats_wherever_it_is_written(
    tmp_path: Path, written_as: str, template: str
) -> None:
    backend = sentencepiece_backend()
    if written_as == "flag":
        backend.post_processor = processors.Sequence([])
    config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "chat_template": template}
    write_model(tmp_path, backend, config | ({} if written_as == "post-processor" else {"add_bos_token": True}))
    tokenizer = Tokenizer.from_directory(tmp_path)
    for ids in (tokenizer.encode("hi"), tokenizer.encode_chat(HI), tokenizer.encode("<s>")):
        assert ids.count(1) == 1
        assert ids[0] == 1


def test_the_post_processor_holds_against_a_flag_and_other_classes_have_no_flags(tmp_path: Path) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    backend = byte_level_backend()
    write_model(tmp_path, backend, config | {"add_bos_token": True, "add_eos_token": True})
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert Tokenizer.from_directory(tmp_path).encode("hello") == theirs.encode("hello") == backend.encode("hello").ids
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    write_model(tmp_path, backend, config | {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False})
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert Tokenizer.from_directory(tmp_path).encode("hello") == theirs.encode("hello") == backend.encode("hello").ids


def test_a_flag_does_not_replace_a_post_processor_that_adds_more(tmp_path: Path) -> None:
    backend = sentencepiece_backend()
    specials = [("<s>", 1), ("</s>", 2)]
    backend.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=specials)
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "add_bos_token": True}
    ids = Tokenizer.from_directory(write_model(tmp_path, backend, config)).encode("hi")
    assert (ids[0], ids[-1]) == (1, 2)


def test_a_flag_without_a_token_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level_backend(), {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True})
    with pytest.raises(InputError, match=r"add_bos_token is true in .* bos_token is None"):
        Tokenizer.from_directory(tmp_path)


# --- Added tokens of tokenizer_config.json


def described(content: str, **changes: bool) -> dict[str, Any]:
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content, **flags, **changes}


def test_added_tokens_are_as_tokenizer_config_declares_them(tmp_path: Path) -> None:
    backend = byte_level_backend()
    think, new = backend.token_to_id("<think>"), backend.get_vocab_size()
    declared = {
        "1": described(SPECIALS[1], rstrip=True),
        str(think): described("<think>"),
        str(new): described("<tool>", special=False),
    }
    write_model(tmp_path, backend, {"added_tokens_decoder": declared, "clean_up_tokenization_spaces": True})
    ours, theirs = Tokenizer.from_directory(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.special_ids == {0, 1, 2, 3, think}
    assert (ours.token_to_id("<tool>"), ours.vocab_size) == (new, new + 1)
    text = "<|im_start|> \n a<think> <tool>. b"
    assert ours._backend.encode(text).ids == theirs.encode(text)
    ids = theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"7": described("<new>")}, "gives the token '<new>' the id 7"),
        ({"7": "text"}, "must map ids to descriptions"),
        ({"x": described("<new>")}, "must map ids to descriptions"),
        ([1], "must map ids to descriptions"),
    ],
)
def test_added_tokens_that_do_not_fit_are_refused(tmp_path: Path, declared: Any, reason: str) -> None:
    write_model(tmp_path, byte_level_backend(), {"added_tokens_decoder": declared})
    with pytest.raises(InputError, match=reason):
        Tokenizer.from_directory(tmp_path)


# --- Chat templates


def test_templates_come_from_files_of_their_own_before_the_config(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level_backend(), {"chat_template": "of the config"})
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of the processor"}), encoding="utf-8")
    assert Tokenizer.from_directory(tmp_path).render_chat(HI) == "of the config"
    (tmp_path / "additional_chat_templates").mkdir()
    extra = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    extra.write_text("{{ tools | length }} tools", encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text("of its file", encoding="utf-8")
    ours, theirs = Tokenizer.from_directory(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for tools in (None, [{}]):
        text = theirs.apply_chat_template(HI, tools=tools, tokenize=False)
        assert ours.render_chat(HI, tools=tools) == text == ("1 tools" if tools else "of its file")


def test_a_template_in_chat_template_json_alone_is_read(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level_backend(), {})
    for stated in ("of the processor", [{"name": "default", "template": "of the processor"}]):
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": stated}), encoding="utf-8")
        assert Tokenizer.from_directory(tmp_path).render_chat(HI) == "of the processor"
    (tmp_path / "chat_template.json").write_text('{"chat_template": 5}', encoding="utf-8")
    with pytest.raises(InputError, match=r"chat_template\.json must be text"):
        Tokenizer.from_directory(tmp_path)


def test_a_gguf_file_may_name_several_templates() -> None:
    keys = ("tokens", "scores", "token_type")
    metadata = metadata_of({key: RECORDED["sentencepiece"][key] for key in keys})
    metadata |= {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "{{ tools | length }} tools"}
    tokenizer = Tokenizer.from_gguf(metadata | {"tokenizer.chat_templates": ["tool_use"]})
    assert tokenizer.render_chat(HI) == "plain"
    assert tokenizer.render_chat(HI, tools=[{}, {}]) == "2 tools"
    with pytest.raises(InputError, match="'tool_use' of the GGUF file must be text"):
        Tokenizer.from_gguf(metadata | {"tokenizer.chat_template.tool_use": 5})


# --- What ends an answer


def test_a_gguf_file_that_states_only_the_end_of_documents_still_ends_turns() -> None:
    tokens = [*RECORDED["byte_level"]["tokens"], "<|eot_id|>", "<|eom_id|>", "<|im_end|>"]
    kinds = [*RECORDED["byte_level"]["token_type"], 3, 4, 1]
    vocabulary = {"tokens": tokens, "merges": RECORDED["byte_level"]["merges"], "token_type": kinds}
    tokenizer = Tokenizer.from_gguf(metadata_of(vocabulary, pre="llama-bpe"))
    ends = {tokenizer.id_to_token(token_id) for token_id in tokenizer.end_ids}
    assert ends == {"<eos>", "<|eot_id|>", "<|eom_id|>"}, "but not an ordinary word of the vocabulary"


# --- SentencePiece's own file


def field(number: int, value: int | float | bytes) -> bytes:
    """A field of a protocol buffer, written as the encoding says: its number and kind, then the value."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value % 2**64)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    digits = []
    while value >= 128:
        digits.append(value % 128 + 128)
        value //= 128
    return bytes([*digits, value])


def write_sentencepiece_model(directory: Path, *, trainer: bytes = field(3, 2), normalizer: bytes = b"") -> Path:
    """The recorded vocabulary as tokenizer.model; normal pieces leave their kind out."""
    recorded = RECORDED["sentencepiece"]
    content = b""
    for text, score, kind in zip(recorded["tokens"], recorded["scores"], recorded["token_type"], strict=True):
        piece = field(1, text.encode()) + field(2, float(score)) + (field(3, kind) if kind != 1 else b"")
        content += field(1, piece)
    content += field(2, field(1, b"corpus.txt") + trainer) + field(3, field(1, b"identity") + field(4, 0) + normalizer)
    (directory / "tokenizer.model").write_bytes(content)
    return directory


def gguf_tokenizer(**more: Any) -> Tokenizer:
    keys = ("tokens", "scores", "token_type")
    return Tokenizer.from_gguf(metadata_of({key: RECORDED["sentencepiece"][key] for key in keys}, **more))


def test_tokenizer_model_alone_gives_what_the_same_vocabulary_in_a_gguf_file_gives(tmp_path: Path) -> None:
    ours, same = Tokenizer.from_directory(write_sentencepiece_model(tmp_path)), gguf_tokenizer()
    assert [ours.encode(text) for text in TEXTS] == [same.encode(text) for text in TEXTS]
    assert (ours.special_tokens, ours.special_ids) == (same.special_tokens, same.special_ids)


def test_what_the_files_beside_tokenizer_model_say_holds(tmp_path: Path) -> None:
    trainer = field(3, 2) + field(42, -1)
    write_sentencepiece_model(tmp_path, trainer=trainer, normalizer=field(3, 0))
    config = {"add_bos_token": False, "eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    count = len(RECORDED["sentencepiece"]["tokens"])
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": count}), encoding="utf-8")
    ours, same = Tokenizer.from_directory(tmp_path), gguf_tokenizer(add_bos_token=False, add_space_prefix=False)
    assert [ours.encode(text) for text in TEXTS] == [same.encode(text) for text in TEXTS]
    assert ours.special_tokens == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    assert ours.encode_chat(HI) == [*same.encode("hi"), count]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trainer": field(3, 1)}, "another kind than BPE"),
        ({"trainer": b""}, "another kind than BPE"),
        ({"normalizer": field(2, b"map")}, "precompiled_charsmap"),
        ({"normalizer": field(4, 1)}, "remove_extra_whitespaces"),
        ({"normalizer": field(5, 0)}, "escape_whitespaces"),
    ],
)
def test_sentencepiece_models_of_other_kinds_are_refused_by_name(
    tmp_path: Path, changes: dict[str, bytes], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        Tokenizer.from_directory(write_sentencepiece_model(tmp_path, **changes))


def test_a_damaged_tokenizer_model_is_refused_wherever_it_is_cut_or_turned(tmp_path: Path) -> None:
    content = (write_sentencepiece_model(tmp_path) / "tokenizer.model").read_bytes()
    choose = random.Random(0)
    damaged = [b"", b"<!DOCTYPE html>", b"\xff" * 40, content[: len(content) // 2 + 1], content[:-3]]
    damaged += [bytes([*content[:at], choose.randrange(256), *content[at + 1 : 3000]]) for at in range(0, 300, 7)]
    for wrong in damaged:
        (tmp_path / "tokenizer.model").write_bytes(wrong)
        with pytest.raises(InputError) as caught:
            Tokenizer.from_directory(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_directory_with_nothing_to_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


def test_a_named_token_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level_backend(), {"eos_token": "\ud800"})
    with pytest.raises(InputError, match=r"eos_token in .*tokenizer_config.json holds the lone surrogate U\+D800"):
        Tokenizer.from_directory(tmp_path)
