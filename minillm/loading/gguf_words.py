"""What the names of `tokenizer.ggml.pre` mean: how byte-level vocabularies cut a text into words before merging.

A GGUF file names the rule and does not hold it. The rules are the regular expressions of the models' published
tokenizer.json files; that llama.cpp (src/llama-vocab.cpp: `tokenizer_pre`, `regex_exprs`) means the same by the
names is checked by its recorded answers (tests/recorded/llama_cpp_tokens.json). A name that is not here is refused: a
text cut by another model's rule still becomes ids, only others than the model was trained on.

| names                                | who uses them                                                           |
|--------------------------------------|-------------------------------------------------------------------------|
| llama-bpe, llama3, llama-v3          | Llama 3 to 3.3, DeepSeek-R1-Distill-Llama                               |
| smaug-bpe                            | SmolLM3, and Llama 3 files whose makers' tokenizer added no BOS         |
| dbrx                                 | Phi-4, Granite 4                                                        |
| qwen2, deepseek-r1-qwen              | Qwen2, Qwen2.5, Qwen3; DeepSeek-R1-Distill-Qwen                         |
| tekken                               | Mistral Nemo                                                            |
| smollm, refact, starcoder            | SmolLM and SmolLM2; Granite 3; Granite's code models                    |
| deepseek-llm, deepseek-coder         | DeepSeek LLM; DeepSeek Coder                                            |
| gpt-2                                | GPT-2 and its heirs                                                     |
| default                              | files of the time before there were names: llama.cpp's own guess        |
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from minillm.errors import InputError

# Contractions, letters, digits and other signs, each with the space before them; white space, of which the last sign
# is left to the word that follows.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# Contractions, letters with one sign before them, digits by threes, signs with their line ends, line ends, white space.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# A word also ends where a small letter is followed by a capital one; no contractions.
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_DIGIT = r"\p{N}"
_LINE_END = r"[\r\n]"
_CJK = "[一-龥ࠀ-一가-퟿]+"  # ideographs, kana, and all between; Hangul
# The letters of scripts with capitals, as DeepSeek LLM lists them: Latin, Greek, Cyrillic, Armenian, Georgian, ...
_CASED_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_ASCII_SIGNS = r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+".replace(r"\u3000", "\u3000")


@dataclass(frozen=True)
class Words:
    """One rule. `cuts` are applied one after the other, each within what the one before it made."""

    cuts: tuple[str, ...]
    nfc: bool = False  # the text is brought into Unicode's form NFC first
    whole_words: bool = False  # a word that is itself in the vocabulary skips merging
    adds_bos: bool = False  # unless the file says otherwise

    def build_into(self, backend: Backend) -> None:
        """Give `backend` this rule, in the library's own words where it has them, as published files do."""
        gpt2_last = self.cuts[-1] == _GPT2
        steps = [_step(cut) for cut in (self.cuts[:-1] if gpt2_last else self.cuts)]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2_last)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, to_bytes]) if steps else to_bytes
        if self.nfc:
            backend.normalizer = normalizers.NFC()


def _step(cut: str) -> pre_tokenizers.PreTokenizer:
    if cut == _DIGIT:
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(cut), "isolated")


_BY_NAMES = {
    ("llama-bpe", "llama3", "llama-v3"): Words((_LLAMA3,), whole_words=True, adds_bos=True),
    ("smaug-bpe",): Words((_LLAMA3,), whole_words=True),
    ("dbrx",): Words((_LLAMA3,)),
    ("qwen2",): Words((_QWEN2,), nfc=True),
    ("deepseek-r1-qwen",): Words((_QWEN2,)),
    ("tekken",): Words((_TEKKEN,), whole_words=True, adds_bos=True),
    ("smollm", "refact", "starcoder"): Words((_DIGIT, _GPT2)),
    ("deepseek-llm",): Words((_LINE_END, _CASED_LETTERS, _ASCII_SIGNS, r"\s+$", _CJK, _DIGIT)),
    ("deepseek-coder",): Words((_LINE_END, r"\s?\p{L}+", r"\s?\p{P}+", _CJK, _DIGIT)),
    ("gpt-2",): Words((_GPT2,)),
    ("default",): Words((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
_RULES = {name: words for names, words in _BY_NAMES.items() for name in names}
KNOWN_NAMES = tuple(_RULES)


def words_named(name: str) -> Words:
    """The rule of that name. Raises InputError for a name that is not known."""
    if name not in _RULES:
        raise InputError(
            f"the GGUF pre-tokenizer {name!r} is not known; minillm builds {', '.join(KNOWN_NAMES)}; "
            "use the model's tokenizer.json"
        )
    return _RULES[name]
