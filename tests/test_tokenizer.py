"""The tokenizer against `transformers`, and against its own promises."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import (
    SPECIALS,
    byte_level_backend,
    gguf_metadata,
    sentencepiece_backend,
    small_tokenizer,
    write_model,
)
from text_samples import ALL_SAMPLES, UNSPELLABLE
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from minillm.errors import InputError, MissingError
from minillm.token_bytes import byte_level_alphabet
from minillm.tokenizer import Tokenizer

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)

# --- The real SmolLM2


@pytest.mark.real_model
def test_every_sample_gets_the_ids_that_transformers_gives_it(tokenizer: Tokenizer, oracle_tokenizer: Any) -> None:
    differing = [text for text in ALL_SAMPLES if tokenizer.encode(text) != oracle_tokenizer.encode(text)]
    assert not differing, f"{len(differing)} of {len(ALL_SAMPLES)} samples differ, first {differing[0][:60]!r}"


@pytest.mark.real_model
def test_every_sample_survives_encoding_and_decoding(tokenizer: Tokenizer) -> None:
    changed = [text for text in ALL_SAMPLES if tokenizer.decode(tokenizer.encode(text)) != text]
    assert not changed, f"{len(changed)} samples come back changed, first {changed[0][:60]!r}"


@pytest.mark.real_model
@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=ANY_TEXT)
def test_any_text_either_survives_or_is_refused(tokenizer: Tokenizer, text: str) -> None:
    unspellable = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
    if unspellable & set(text.encode()):
        with pytest.raises(InputError, match="no token"):
            tokenizer.encode(text)
    else:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.real_model
@settings(max_examples=300, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), skip=st.booleans())
def test_any_ids_decode_as_in_the_library_even_to_invalid_utf8(
    tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    assert tokenizer.decode(ids, skip) == tokenizer._backend.decode(ids, skip_special_tokens=skip)


@pytest.mark.real_model
@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.binary(max_size=24).map(lambda raw: bytes(b for b in raw if b not in b"\x04\x06\x13\x14\x16\x1d")))
def test_any_bytes_decode_as_in_the_library(tokenizer: Tokenizer, data: bytes) -> None:
    marks = {byte: mark for mark, byte in byte_level_alphabet().items()}
    ids = [i for byte in data if (i := tokenizer.token_to_id(marks[byte])) is not None]
    assert tokenizer.decode(ids) == tokenizer._backend.decode(ids)


@pytest.mark.real_model
def test_characters_without_a_token_are_refused_and_not_dropped(tokenizer: Tokenizer) -> None:
    for text in UNSPELLABLE:
        with pytest.raises(InputError, match=r"no token; leave it out"):
            tokenizer.encode(text)


@pytest.mark.real_model
def test_smollm2_reads_digits_one_by_one(tokenizer: Tokenizer) -> None:
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode("x 2024")] == ["x", "Ġ", "2", "0", "2", "4"]


@pytest.mark.real_model
def test_the_vocabulary_is_smollm2s(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.special_ids == frozenset(range(17))
    assert tokenizer.token_to_id("<|im_end|>") == 2
    assert tokenizer.id_to_token(2) == "<|im_end|>"


@pytest.mark.real_model
def test_a_special_token_in_raw_text_stays_text(tokenizer: Tokenizer) -> None:
    for token_id in tokenizer.special_ids:
        text = f"before {tokenizer.id_to_token(token_id)} after"
        ids = tokenizer.encode(text)
        assert not tokenizer.special_ids & set(ids), f"{text!r} became a special token"
        assert tokenizer.decode(ids) == text


@pytest.mark.real_model
def test_no_beginning_of_sequence_is_added_where_the_model_has_none(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hi") == tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("") == []


@pytest.mark.real_model
def test_a_saved_tokenizer_is_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = Tokenizer.from_directory(tmp_path)
    assert again.special_tokens == tokenizer.special_tokens
    assert again.chat_template == tokenizer.chat_template
    assert all(again.encode(text) == tokenizer.encode(text) for text in ALL_SAMPLES[:60])


@pytest.mark.real_model
def test_transformers_reads_a_saved_tokenizer_beside_a_llama_config(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)
    assert all(theirs.encode(text) == tokenizer.encode(text) for text in ALL_SAMPLES[:60])


# --- Special text, on a small tokenizer


def test_special_tokens_keep_their_text_when_not_skipped() -> None:
    small = small_tokenizer()
    ids = [1, *small.encode("hello"), 2]
    assert small.decode(ids) == "hello"
    assert small.decode(ids, skip_special_tokens=False) == "<|im_start|>hello<|im_end|>"


def test_an_added_token_that_is_not_special_is_matched_and_shown() -> None:
    small = small_tokenizer()
    think = small.token_to_id("<think>")
    assert think in small.encode("a<think>b")
    assert small.decode(small.encode("a<think>b")) == "a<think>b"


def test_the_text_of_an_added_token_is_literal_and_not_byte_level() -> None:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken("é à", special=False, normalized=False), AddedToken("éé", normalized=False)])
    tokenizer = Tokenizer(backend, {})
    for text in ("é à", "éé"):
        token_id = tokenizer.token_to_id(text)
        assert token_id is not None
        assert tokenizer.id_to_bytes(token_id) == text.encode()


def test_a_named_end_token_is_special_even_if_tokenizer_json_calls_it_ordinary(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level_backend(), {"eos_token": "<think>"})
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.eos_token_id in tokenizer.special_ids
    assert tokenizer.eos_token_id not in tokenizer.encode("a<think>b"), "user text became the end token"


def test_special_text_that_only_normalizing_brings_forth_stays_text() -> None:
    backend = byte_level_backend()
    backend.normalizer = normalizers.NFKC()
    backend.add_special_tokens([AddedToken("<stop>", special=True, normalized=True)])
    tokenizer = Tokenizer(backend, {}, {"default": "{{ messages[0].content }}<stop>"})
    stop_id = tokenizer.token_to_id("<stop>")
    assert stop_id in tokenizer._backend.encode("＜stop＞").ids, "the premise: normalizing makes the token"
    assert stop_id not in tokenizer.encode("＜stop＞")
    ids = tokenizer.encode_chat([{"role": "user", "content": "＜stop＞"}])
    assert ids.count(stop_id) == 1, "only the template's own"


def test_truncation_and_padding_in_tokenizer_json_do_not_apply(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=20)
    tokenizer = Tokenizer.from_directory(write_model(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("xyzxyz")) == "xyzxyz"
    assert len(tokenizer.encode("xyzxyz")) == 6


def test_an_unused_id_inside_the_vocabulary_has_no_text() -> None:
    vocabulary = {token: i for i, token in enumerate(byte_level_alphabet())}
    del vocabulary["!"]
    vocabulary["!"] = 300
    backend = Backend(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("!", normalized=False)])
    tokenizer = Tokenizer(backend, {})
    assert tokenizer.vocab_size == 301
    assert tokenizer.id_to_token(290) is None
    assert tokenizer.decode([290, 300]) == "!"


# --- SentencePiece-style pipelines


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=ANY_TEXT)
def test_byte_fallback_decodes_text_as_the_library_does(text: str) -> None:
    backend = sentencepiece_backend()
    tokenizer = Tokenizer(backend, {"bos_token": "<s>"})
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == backend.decode(ids)
    assert ids[:1] == [1]


def test_byte_fallback_spells_unknown_characters_in_bytes() -> None:
    tokenizer = Tokenizer(sentencepiece_backend(), {"bos_token": "<s>"})
    ids = tokenizer.encode("hi 😀")
    assert [tokenizer.id_to_bytes(i) for i in ids[-4:]] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert tokenizer.decode(ids) == "hi 😀"


def test_only_the_first_space_is_the_pipelines_own() -> None:
    tokenizer = Tokenizer(sentencepiece_backend(), {"bos_token": "<s>"})
    ids = [tokenizer.token_to_id(token) for token in ("▁", "▁hi", "▁hi")]
    assert tokenizer.decode(ids) == " hi hi" == tokenizer._backend.decode([i for i in ids if i is not None])


# --- What decoders are understood


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.ByteLevel(),
        decoders.Sequence([decoders.ByteLevel()]),
        decoders.Sequence([decoders.Sequence([decoders.ByteLevel()])]),
    ],
    ids=["plain", "in a sequence", "in a sequence of sequences"],
)
def test_byte_level_is_recognised_however_it_is_nested(decoder: Any) -> None:
    backend = byte_level_backend()
    backend.decoder = decoder
    tokenizer = Tokenizer(backend, {})
    assert tokenizer.decode(tokenizer.encode("héllo 😀")) == "héllo 😀"


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.Metaspace(), "Metaspace"),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]), r"ByteLevel \+ Strip"),
        (
            decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]),
            "replaces",
        ),
        (
            decoders.Sequence(
                [
                    decoders.Replace("▁", " "),
                    decoders.ByteFallback(),
                    decoders.Fuse(),
                    decoders.Strip(" ", 0, 1),
                ]
            ),
            "strips",
        ),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: Any, named: str) -> None:
    backend = byte_level_backend()
    backend.decoder = decoder
    with pytest.raises(InputError, match=named):
        Tokenizer(backend, {})


def test_a_tokenizer_without_a_decoder_is_refused() -> None:
    with pytest.raises(InputError, match="no decoder"):
        Tokenizer(Backend(models.BPE({"a": 0}, [])), {})


# --- Bad input


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["hi"]])
def test_what_is_not_text_is_refused(text: Any) -> None:
    with pytest.raises(InputError, match="must be a str"):
        small_tokenizer().encode(text)


def test_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match=r"U\+DCFF at position 2"):
        small_tokenizer().encode("ab\udcff")


@pytest.mark.parametrize("bad", [-1, 10**6, 2**70, "3", None, 1.5])
def test_ids_outside_the_vocabulary_are_refused(bad: Any) -> None:
    with pytest.raises(InputError, match=r"outside the vocabulary|not an integer"):
        small_tokenizer().decode([5, bad])


def test_a_directory_without_a_tokenizer_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": "1.0"}', b"\xff\xfe\x00", b"\x00" * 100])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match="not a tokenizer that can be read"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "JSON object"),
        (b"\xff", "not valid JSON"),
        (b'{"eos_token": 5}', "must be a token's text"),
        (b'{"eos_token": "<absent>"}', "not in the tokenizer's vocabulary"),
        (b'{"chat_template": 5}', "must be text"),
        (b'{"chat_template": [{"name": "default"}]}', "must be text"),
    ],
)
def test_a_damaged_tokenizer_config_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    write_model(tmp_path, byte_level_backend())
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(InputError, match=reason):
        Tokenizer.from_directory(tmp_path)


# --- Files


def test_named_tokens_may_be_text_or_objects_and_the_config_wins(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level_backend(), {"eos_token": {"content": "<|im_end|>", "special": True}})
    old = {"eos_token": "<|endoftext|>", "bos_token": {"content": "<s>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(old), encoding="utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "bos_token": "<s>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (
        SPECIALS.index("<s>"),
        SPECIALS.index("<|im_end|>"),
    )


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    write_model(tmp_path, byte_level_backend(), {"chat_template": "from the config"})
    (tmp_path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert Tokenizer.from_directory(tmp_path).chat_template == "from the file"


def test_named_templates_are_kept_by_saving(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    (tmp_path / "a").mkdir()
    write_model(tmp_path / "a", byte_level_backend(), {"chat_template": named})
    Tokenizer.from_directory(tmp_path / "a").save(tmp_path / "b")
    tokenizer = Tokenizer.from_directory(tmp_path / "b")
    message = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(message) == "plain"
    assert tokenizer.render_chat(message, tools=[{}, {}]) == "2 tools"


# --- GGUF


def test_gguf_token_types_decide_what_is_special() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_metadata())
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode("<tool>") == [3], "a user-defined token is matched in text"
    assert tokenizer.decode([3]) == "<tool>"
    assert tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


def test_a_gguf_token_of_the_unknown_type_is_special_even_if_it_has_no_name() -> None:
    tokenizer = Tokenizer.from_gguf(gguf_metadata(unknown_token_id=None))
    assert 0 in tokenizer.special_ids
    assert 0 not in tokenizer.encode("<unk>")


def test_gguf_add_bos_token_puts_one_before_each_text() -> None:
    with_bos = Tokenizer.from_gguf(gguf_metadata(add_bos_token=True))
    without = Tokenizer.from_gguf(gguf_metadata(add_bos_token=False))
    assert with_bos.encode("he") == [1, *without.encode("he")]
    assert with_bos.encode("he", add_special_tokens=False) == without.encode("he")


def test_gguf_llama3_adds_bos_unless_told_otherwise_and_others_do_not() -> None:
    assert Tokenizer.from_gguf(gguf_metadata(pre="llama-bpe")).encode("he")[0] == 1
    assert Tokenizer.from_gguf(gguf_metadata(pre="gpt-2")).encode("he")[0] != 1


@pytest.mark.parametrize(
    ("pre", "digits"),
    [("smollm", ["1", "2"]), ("qwen2", ["1", "2"]), ("gpt-2", ["12"]), ("llama-bpe", ["12"])],
)
def test_gguf_pre_tokenizers_differ_in_how_they_cut_digits(pre: str, digits: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(gguf_metadata(pre=pre, add_bos_token=False))
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode("12")] == digits


def test_gguf_qwen2_normalizes_to_nfc_as_its_published_tokenizer_does() -> None:
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    tokenizer = Tokenizer.from_gguf(gguf_metadata(pre="qwen2"))
    text = "e\u0301 Ångström I'LL 123\r\n  x"
    reference = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    ours = tokenizer._backend.pre_tokenizer
    assert ours is not None
    assert ours.pre_tokenize_str(text) == reference.pre_tokenize_str(text)
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "bert"}, "'bert'"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"pre": "viking"}, "'viking'"),
        ({"pre": None}, "tokenizer.ggml.pre"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": ["he"]}, "not two tokens"),
        ({"merges": ["q q"]}, "do not fit"),
        ({"tokens": ["a", "a"], "token_type": [1, 1], "merges": []}, "twice"),
        ({"token_type": [1]}, "token types"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"add_bos_token": True, "bos_token_id": None}, "bos_token_id"),
    ],
)
def test_gguf_metadata_that_cannot_be_used_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Tokenizer.from_gguf(gguf_metadata(**changes))


def test_a_long_text_has_the_ids_that_its_pipeline_gives_it(monkeypatch):
    """By another call, which lets other threads run meanwhile."""
    tokenizer = small_tokenizer()
    text = "hello wörld \u200d 🙂 <|im_start|>\n" * 40
    short = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    monkeypatch.setattr("minillm.plain_pipelines.LONG_CHARACTERS", 100)
    assert (tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)) == short
    sentencepiece = Tokenizer(sentencepiece_backend(), {})
    text = "hello world " * 40
    monkeypatch.setattr("minillm.plain_pipelines.LONG_CHARACTERS", 10**9)
    short = sentencepiece.encode(text)
    monkeypatch.setattr("minillm.plain_pipelines.LONG_CHARACTERS", 100)
    assert sentencepiece.encode(text) == short
