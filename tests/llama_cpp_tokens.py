"""How llama.cpp cuts texts into tokens, recorded: CI does not build llama.cpp, which takes ten minutes.

    python tests/llama_cpp_tokens.py        # makes tests/recorded/llama_cpp_tokens.json anew; needs llama-cpp-python

The vocabularies are small and trained here, on these very texts and across the borders of words, so that a border in
another place gives other tokens. They are recorded too.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
from text_samples import CODE, COMBINING, EMOJI, LANGUAGES, NUMBERS, PUNCTUATION, WHITE_SPACE
from tokenizers import Tokenizer, models, trainers

from minillm.token_bytes import byte_level_alphabet

RECORD = Path(__file__).parent / "recorded" / "llama_cpp_tokens.json"
SAMPLES = [*LANGUAGES, *EMOJI, *COMBINING, *NUMBERS, *CODE, *WHITE_SPACE, *PUNCTUATION]
BORDERS = [  # where the rules differ
    "parseHTTPResponse fromJSON iPhone's WHO'LL getURLs",
    "12345678 3.1415926 ½ ①②③ ١٢٣٤٥",
    "path/to//file.py\n\n\n  x, !!\n/end",
    "a word that no merges reach: unreached",
]
TEXTS = [*(text for text in SAMPLES if text and len(text) < 80), *BORDERS]
SPECIAL_TEXTS = ["<s>[INST] hi [/INST] so</s><s>[INST]a", "a</s> b", "<tool>x<tool> <tool>", "</s>", "x <s> y"]
BYTE_LEVEL_NAMES = [
    *("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx", "qwen2", "deepseek-r1-qwen", "tekken", "smollm"),
    *("refact", "starcoder", "deepseek-llm", "deepseek-coder", "gpt-2", "default"),
]


def byte_level_vocabulary() -> dict[str, Any]:
    """GPT-2's alphabet, and merges trained on whole lines: words, spaces, digits and signs in one."""
    stand_ins = {byte: mark for mark, byte in byte_level_alphabet().items()}
    lines = ["".join(stand_ins[byte] for byte in text.encode()) for text in TEXTS]
    tokens, merges = _trained(lines, [*stand_ins.values()], 900)
    tokens = ["<bos>", "<eos>", *tokens, "Ġunreached"]
    return {"tokens": tokens, "merges": merges, "token_type": [3, 3, *[1] * (len(tokens) - 2)]}


def sentencepiece_vocabulary() -> dict[str, Any]:
    """Letters of a few scripts, pieces trained on whole lines, and bytes for what is left."""
    letters = sorted({c for text in LANGUAGES[:8] for c in text if c.isalpha()} | set("▁.,:;!?()<>/[]0123456789'\n"))
    lines = [text.replace(" ", "▁") for text in [*LANGUAGES[:8], *CODE, *NUMBERS, *WHITE_SPACE, *PUNCTUATION]]
    trained, _ = _trained(["".join(c for c in line if c in letters) for line in lines], letters, 700)
    joined = [token for token in trained if token not in letters]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "tokens": ["<unk>", "<s>", "</s>", *raw, *joined, *letters, "<tool>"],
        "scores": [0.0] * 259 + [-float(rank) for rank in range(len(joined) + len(letters))] + [-1000.0],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * (len(joined) + len(letters)), 4],
    }


def _trained(lines: list[str], alphabet: list[str], size: int) -> tuple[list[str], list[str]]:
    """Tokens in the order of their making, and merges."""
    learner = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False, max_token_length=12)
    learner.train_from_iterator(lines, trainer)
    model = json.loads(learner.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(pair) for pair in model["merges"]]


def metadata_of(vocabulary: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The GGUF metadata of a recorded vocabulary."""
    model = "llama" if "scores" in vocabulary else "gpt2"
    ids = {"bos_token_id": vocabulary["tokens"].index("<s>" if model == "llama" else "<bos>")}
    ids["eos_token_id"] = ids["bos_token_id"] + 1
    return {f"tokenizer.ggml.{name}": value for name, value in ({"model": model} | vocabulary | ids | more).items()}


def record() -> None:
    """Ask llama.cpp, and write its answers down."""
    byte_level, sentencepiece = byte_level_vocabulary(), sentencepiece_vocabulary()
    answers: list[list[list[int]]] = []
    names: dict[str, int] = {}
    for name in BYTE_LEVEL_NAMES:
        given = _answers(metadata_of(byte_level, pre=name), TEXTS, special=False)
        if given not in answers:
            answers.append(given)
        names[name] = answers.index(given)
    with_prefix = metadata_of(sentencepiece)
    content = {
        "made by": f"python tests/llama_cpp_tokens.py, with llama-cpp-python {_version()}",
        "texts": TEXTS,
        "byte_level": byte_level | {"answers": answers, "names": names},
        "sentencepiece": sentencepiece
        | {
            "with_prefix": _answers(with_prefix, TEXTS, special=False),
            "without_prefix": _answers(metadata_of(sentencepiece, add_space_prefix=False), TEXTS, special=False),
            "special_texts": SPECIAL_TEXTS,
            "special": _answers(with_prefix, SPECIAL_TEXTS, special=True),
        },
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items())
    RECORD.write_text("{" + lines + "}\n", encoding="utf-8")


def _answers(metadata: dict[str, Any], texts: list[str], *, special: bool) -> list[list[int]]:
    from llama_cpp import Llama

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "vocabulary.gguf"
        _write(path, metadata)
        model = Llama(str(path), vocab_only=True, verbose=False)
        return [model.tokenize(text.encode(), add_bos=False, special=special) for text in texts]


def _write(path: Path, metadata: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    shape = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32}
    shape |= {"attention.head_count": 1, "rope.dimension_count": 32}
    for key, value in shape.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    add_by_type = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
    for key, value in metadata.items():
        add_by_type[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _version() -> str:
    import llama_cpp

    return llama_cpp.__version__


if __name__ == "__main__":
    sys.exit(record())
