"""The peer llama.cpp: the file that is written for it, read back by our own reader; and the calls that are made of it.

The library itself is not needed: a stand-in of the few functions that are called takes down what it is given.
"""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from checkpoints import HEAD_DIM, hf_config, hf_tensors, write_directory
from tiny import random_ids

from minillm.benchmark import llama_cpp_api, llama_cpp_peer
from minillm.benchmark.engine import LLAMA_CPP, EngineSpec
from minillm.benchmark.gguf_file import gguf_weight_bytes, quantize_gguf, write_gguf
from minillm.benchmark.llama_cpp_peer import LlamaCppEngine
from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.kv_cache import NoCache
from minillm.loading import open_checkpoint
from minillm.loading.checkpoint import read
from minillm.loading.gguf import permute, unpermute
from minillm.loading.loader import load_model
from minillm.prefill import prefill

KINDS = {
    "tied": {},
    "untied": {"tied": False},
    "biases": {"biases": True},
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def directory(tmp_path, kind="tied", **changes):
    flags = KINDS[kind]
    biases, tied = flags.get("biases", False), flags.get("tied", True)
    config = {"attention_bias": biases, "mlp_bias": biases, "tie_word_embeddings": tied, **changes}
    return open_checkpoint(write_directory(tmp_path / "model", hf_tensors(**flags), **config))


def logits(checkpoint, dtype):
    model = load_model(checkpoint, dtype=dtype)
    return prefill(model, random_ids(9), NoCache(model.config))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_file_holds_the_model_of_the_directory(tmp_path, kind, dtype):
    checkpoint = directory(tmp_path, kind)
    write_gguf(checkpoint, tmp_path / "model.gguf", dtype)
    back = open_checkpoint(tmp_path / "model.gguf")
    assert replace(back.config, bos_token_id=None, eos_token_ids=()) == replace(
        checkpoint.config, bos_token_id=None, eos_token_ids=()
    )
    wide = getattr(torch, dtype)
    for name in checkpoint.tensors.names():
        stored = read(checkpoint.tensors, name)
        expected = stored.to(wide).float() if stored.dim() > 1 else stored
        assert torch.equal(read(back.tensors, name), expected), name
    assert torch.equal(logits(back, wide), logits(checkpoint, wide))


@pytest.mark.parametrize("scaling", [LLAMA3, {"rope_type": "linear", "factor": 4.0}], ids=["llama3", "linear"])
def test_stretched_rotary_frequencies_are_stretched_in_the_file_too(tmp_path, scaling):
    checkpoint = directory(tmp_path, rope_scaling=scaling)
    write_gguf(checkpoint, tmp_path / "model.gguf", "float32")
    back = open_checkpoint(tmp_path / "model.gguf").config.rope_scaling
    assert isinstance(checkpoint.config.rope_scaling, RopeScaling)
    assert back == checkpoint.config.rope_scaling


def test_a_model_beyond_a_plain_llama_is_refused_before_a_file_is_begun(tmp_path):
    checkpoint = directory(tmp_path)
    for change, words in (
        ({"qk_norm": True}, "norms of queries and keys"),
        ({"residual_multiplier": 0.5}, "multipliers"),
        ({"rope_scaling": RopeScaling("yarn", 2.0)}, "yarn rope scaling"),
    ):
        changed = replace(checkpoint, config=replace(checkpoint.config, **change))
        with pytest.raises(InputError, match=f"a model with {words} cannot be written as a GGUF file here, only"):
            write_gguf(changed, tmp_path / "model.gguf", "float32")
    assert not (tmp_path / "model.gguf").exists()


def test_permuting_is_undone_by_unpermuting():
    rows = torch.randn(3 * HEAD_DIM, 5)
    assert not torch.equal(permute(rows, HEAD_DIM), rows)
    assert torch.equal(unpermute(permute(rows, HEAD_DIM), HEAD_DIM), rows)


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_bytes_are_counted_as_the_file_stores_them(tmp_path, kind):
    checkpoint = directory(tmp_path, kind)
    write_gguf(checkpoint, tmp_path / "model.gguf", "bfloat16")
    sizes = {name: read(checkpoint.tensors, name) for name in checkpoint.tensors.names()}
    found = gguf_weight_bytes(tmp_path / "model.gguf")
    assert found.all == sum(t.numel() * (2 if t.dim() > 1 else 4) for t in sizes.values())
    looked_up = 0 if kind == "tied" else 2 * sizes["model.embed_tokens.weight"].numel()
    assert found.per_pass == found.all - looked_up
    assert found.head_dim == HEAD_DIM


def test_no_tokenizer_is_in_the_file(tmp_path):
    write_gguf(directory(tmp_path), tmp_path / "model.gguf", "float32")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "none"
    assert "tokenizer.ggml.tokens" not in fields
    assert ModelConfig.from_hf(hf_config()).vocab_size == fields["llama.vocab_size"].contents()


# The calls


class StandIn:
    """A context is the ids that each sequence holds; the likeliest id is the sum of a sequence's, modulo V."""

    V, LONGEST, LLAMA_FLASH_ATTN_TYPE_DISABLED = 50, 4, 0

    def __init__(self):
        self.passes, self.freed, self.logged = [], [], []

    def llama_model_default_params(self):
        return SimpleNamespace()

    def llama_context_default_params(self):
        return SimpleNamespace(n_batch=self.LONGEST)

    def llama_model_load_from_file(self, path, params):
        assert params.n_gpu_layers == 0
        return path

    def llama_model_get_vocab(self, model):
        return "vocab"

    def llama_vocab_n_tokens(self, vocab):
        return self.V

    def llama_model_n_head_kv(self, model):
        return 3

    def llama_model_n_layer(self, model):
        return 2

    def llama_init_from_model(self, model, params):
        context = SimpleNamespace(params=params, held={n: [] for n in range(params.n_seq_max)}, rows={})
        return context if params.n_ctx < 1000 else None

    def llama_free(self, context):
        self.freed.append(context)

    def llama_get_memory(self, context):
        return context

    def llama_memory_seq_rm(self, context, sequence, start, end):
        assert end == -1
        del context.held[sequence][start:]
        return True

    def llama_memory_seq_cp(self, context, source, sequence, start, end):
        assert (start, end) == (-1, -1), "from one sequence to another, all of it"
        context.held[sequence] = list(context.held[source])

    def llama_batch_init(self, rows, embedding, sequences):
        rows = range(rows)
        return SimpleNamespace(
            token=[0 for _ in rows],
            pos=[0 for _ in rows],
            n_seq_id=[0 for _ in rows],
            seq_id=[[0] for _ in rows],
            logits=[0 for _ in rows],
        )

    def llama_batch_free(self, batch):
        pass

    def llama_decode(self, context, batch):
        assert batch.n_tokens <= self.LONGEST
        context.rows = {}
        for row in range(batch.n_tokens):
            ((sequence,), position) = batch.seq_id[row], batch.pos[row]
            held = context.held[sequence]
            assert len(held) == position < context.params.n_ctx // context.params.n_seq_max
            held.append(batch.token[row])
            if batch.logits[row]:
                context.rows[row] = sum(held) % self.V
        self.passes.append((list(batch.token), list(batch.pos), [s for (s,) in batch.seq_id], list(batch.logits)))
        return 0

    def llama_get_logits_ith(self, context, row):
        best = context.rows[row if row >= 0 else max(context.rows)]
        values = np.zeros(self.V, dtype=np.float32)
        values[best] = 1
        self.kept = values  # a pointer keeps nothing alive
        return np.ctypeslib.as_ctypes(values)


@pytest.fixture
def stand_in(monkeypatch):
    library = StandIn()
    monkeypatch.setattr(llama_cpp_peer, "llama_cpp", lambda: library)
    return library


@pytest.fixture
def engine(stand_in, tmp_path):
    write_gguf(directory(tmp_path), tmp_path / "model.gguf", "float32")
    return LlamaCppEngine(EngineSpec(LLAMA_CPP, str(tmp_path / "model.gguf"), "cpu", "float32", 2))


def test_a_prompt_goes_through_in_order_and_only_its_last_row_gets_logits(stand_in, engine):
    assert engine.prefill([3, 4, 5, 6, 7, 8], 20) > 0
    assert stand_in.passes == [
        ([3, 4, 5, 6], [0, 1, 2, 3], [0, 0, 0, 0], [False] * 4),
        ([7, 8], [4, 5], [0, 0], [False, True]),
    ]
    params = engine.context.params
    assert (params.n_threads, params.n_threads_batch, params.n_seq_max, params.n_ctx) == (2, 2, 1, 20)


def test_decoding_feeds_each_choice_back_and_forgets_it_afterwards(stand_in, engine):
    engine.prefill([3, 4], 20)
    for _ in range(2):
        stand_in.passes.clear()
        assert engine.decode(1, 3) > 0
        assert [(tokens, positions) for tokens, positions, _, _ in stand_in.passes] == [
            ([7], [2]),
            ([14], [3]),
            ([28], [4]),
        ]
        assert engine.context.held == {0: [3, 4]}


def test_a_batch_decodes_copies_in_a_context_of_its_own(stand_in, engine):
    engine.prefill([3, 4], 20)
    stand_in.passes.clear()
    assert engine.decode(3, 2) > 0
    assert stand_in.passes == [
        ([3, 4], [0, 1], [0, 0], [False, True]),
        ([7, 7, 7], [2, 2, 2], [0, 1, 2], [False] * 3),  # which makes the copies, and is forgotten
        ([7, 7, 7], [2, 2, 2], [0, 1, 2], [True] * 3),
        ([14, 14, 14], [3, 3, 3], [0, 1, 2], [True] * 3),
    ]
    assert [context.params.n_seq_max for context in stand_in.freed] == [3]
    assert stand_in.freed[0].params.n_ctx == 60
    assert engine.context.held == {0: [3, 4]}


def test_flash_attention_is_turned_off_where_that_is_asked_for_and_left_alone_elsewhere(stand_in, engine, tmp_path):
    asked = EngineSpec(LLAMA_CPP, str(tmp_path / "model.gguf"), "cpu", "float32", 2, flash_off=True)
    without = LlamaCppEngine(asked)
    for each, expected in ((engine, None), (without, 0)):
        each.prefill([3, 4], 20)
        for context in (each.context, each._copies(2)):
            assert getattr(context.params, "flash_attn_type", None) == expected


def test_a_library_that_cannot_turn_it_off_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace())
    with pytest.raises(InputError, match="pip install --upgrade llama-cpp-python"):
        llama_cpp_api.llama_cpp.__wrapped__()


def test_every_context_is_given_back(stand_in, engine):
    engine.prefill([3, 4], 20)
    first = engine.context
    engine.prefill([5], 20)
    assert stand_in.freed == [first]
    assert engine.next_logits([3, 4]).argmax() == 7
    assert len(stand_in.freed) == 2


def test_what_llama_cpp_refuses_is_said_in_a_sentence(stand_in, engine):
    with pytest.raises(InputError, match="no memory for 1 x 2,000"):
        engine.prefill([3], 2000)
    stand_in.llama_decode = lambda context, batch: 1
    with pytest.raises(InputError, match="refused a pass of 1 tokens"):
        engine.prefill([3], 20)
    stand_in.llama_model_load_from_file = lambda path, params: None
    with pytest.raises(InputError, match="cannot load nowhere"):
        LlamaCppEngine(EngineSpec(LLAMA_CPP, "nowhere", "cpu", "float32", 2))


def test_keys_and_values_are_counted_in_float16(engine):
    assert engine.kv_bytes_per_token == 2 * (2 * 3 * HEAD_DIM) * 2
    assert engine.vocab_size == StandIn.V


@pytest.mark.parametrize(("kind", "ftype"), [("Q8_0", 7), ("Q4_1", 3)])
def test_every_matrix_is_quantized_to_the_format_of_ours(monkeypatch, tmp_path, kind, ftype):
    calls = []

    def quantize(source, file, params):
        calls.append((source, file, vars(params)))
        return 0 if source == b"good" else 1

    library = SimpleNamespace(
        llama_model_quantize_default_params=SimpleNamespace,
        LLAMA_FTYPE_MOSTLY_Q8_0=7,
        LLAMA_FTYPE_MOSTLY_Q4_1=3,
        GGML_TYPE_Q8_0=8,
        llama_model_quantize=quantize,
    )
    monkeypatch.setattr("minillm.benchmark.gguf_file.llama_cpp", lambda: library)
    quantize_gguf(Path("good"), tmp_path / "out", kind, 2)
    wanted = {"ftype": ftype, "nthread": 2, "pure": True, "token_embedding_type": 8, "output_tensor_type": 8}
    assert calls == [(b"good", str(tmp_path / "out").encode(), wanted)]
    with pytest.raises(InputError, match=f"cannot quantize this model to {kind}"):
        quantize_gguf(tmp_path / "bad", tmp_path / "out", kind, 2)


def test_where_it_is_not_installed_the_way_to_get_it_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "minillm\[bench\]"'):
        llama_cpp_api.require_llama_cpp()
