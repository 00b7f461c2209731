"""From the C++ files to a library: compiled once, found again, and one sentence where it cannot be."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from quantized_models import FORMATS, model_in, native_config, random_cache, step
from tiny import random_ids, save_tiny_model

from minillm import LLM, SamplingParams
from minillm.errors import InputError, MissingError
from minillm.native import build
from minillm.native.build import find_compiler, native_library
from minillm.native.decode_pass import NativeDecodePass
from minillm.native.prompt_pass import NativePromptPass, has_tiles

ROOT = Path(__file__).parents[1]

make_library = native_library.__wrapped__
"""As in a new process: nothing is remembered."""


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache directory."""
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def made():
    """What the real compiler makes, once for all tests."""
    return native_library()._name


@pytest.fixture
def runs(made, tmp_path, monkeypatch, cache):
    """A compiler that notes each run in the file that is given here. It hands out what the real one has made before."""
    log = tmp_path / "runs"
    log.touch()
    text = (
        'if [ "$1" = --version ]; then echo "fake 1.0"; exit; fi',
        f'echo "$@" >> "{log}"',
        'while [ "$1" != -o ]; do shift; done',
        f'head -c 1000 "{made}" > "$2"; sleep ${{SLOW:-0}}; cp "{made}" "$2"',
    )
    monkeypatch.setenv("CXX", str(script(tmp_path / "compiler", *text)))
    return log


def count(runs: Path) -> int:
    """Libraries made: each unit is compiled by a run of its own, and one more links them."""
    lines = runs.read_text(encoding="utf-8").splitlines()
    linked = [line for line in lines if "-c" not in line.split()]
    assert len(lines) == len(linked) * (1 + len(build.UNITS))
    return len(linked)


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "native").iterdir())


def missing(*, match: str) -> str:
    with pytest.raises(MissingError, match=match) as caught:
        make_library()
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestOnce:
    def test_the_second_call_and_the_next_process_compile_nothing(self, runs, cache):
        first = make_library()
        assert count(runs) == 1
        assert make_library()._name == first._name
        assert count(runs) == 1
        assert len(kept(cache)) == 1

    def test_two_processes_at_once_both_get_a_whole_library(self, runs, monkeypatch, cache):
        """While the one writes, the other must not load what is there so far."""
        monkeypatch.setenv("SLOW", "1")
        code = "from minillm.native.build import native_library as n; print(n().decode_layers is not None)"
        command = [sys.executable, "-c", code]
        both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [process.communicate(timeout=120)[0].strip() for process in both] == ["True", "True"]
        assert len(kept(cache)) == 1, "a temporary file is left"

    def test_another_flag_source_compiler_or_processor_makes_another_library(self, runs, tmp_path, monkeypatch, cache):
        make_library()
        with monkeypatch.context() as patch:
            patch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
            make_library()
        assert len(kept(cache)) == 2
        sources = shutil.copytree(build.SOURCES, tmp_path / "sources")
        for name in ("decode.cpp", "rows.cpp", "attention.h", "vectors.h", "in_floats.h"):
            with monkeypatch.context() as patch:
                (sources / name).write_text((sources / name).read_text(encoding="utf-8") + "// new\n", encoding="utf-8")
                patch.setattr(build, "SOURCES", sources)
                make_library()
        assert len(kept(cache)) == 7
        with monkeypatch.context() as patch:
            patch.setattr(build, "_processor_flags", lambda: "flags: none")
            make_library()
        assert len(kept(cache)) == 8
        compiler = Path(os.environ["CXX"])
        script(compiler, *compiler.read_text(encoding="utf-8").replace("fake 1.0", "fake 1.1").splitlines()[1:])
        make_library()
        assert len(kept(cache)) == count(runs) == 9

    def test_one_openmp_for_torch_and_the_kernels(self, runs):
        make_library()
        own = list((Path(torch.__file__).parent / "lib").glob("libgomp*"))
        assert all(str(path) in runs.read_text(encoding="utf-8") for path in own)


class TestWhatMayBeMissing:
    def test_the_compiler_that_is_named(self, cache, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        missing(match=r"no C\+\+ compiler: \$CXX is 'no-such-compiler', which is not there \(.*apt install g\+\+\)")
        assert not cache.exists()

    def test_any_compiler(self, cache, monkeypatch, tmp_path):
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        missing(match=r"no C\+\+ compiler: there is none of c\+\+, g\+\+, clang\+\+")

    def test_a_compiler_on_the_path_is_found(self, monkeypatch, tmp_path):
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        script(tmp_path / "clang++")
        assert find_compiler() == str(tmp_path / "clang++")
        script(tmp_path / "g++")
        assert find_compiler() == str(tmp_path / "g++")

    def test_a_compiler_that_fails_is_quoted(self, cache, monkeypatch, tmp_path):
        lines = ("echo 'decode.cpp: In function f:' >&2", "echo 'decode.cpp:3:1: error: no vectors here' >&2", "exit 1")
        monkeypatch.setenv("CXX", str(script(tmp_path / "bad", '[ "$1" = --version ] && exit', *lines)))
        missing(match=r"the C\+\+ compiler .*bad failed: decode.cpp:3:1: error: no vectors here$")
        assert kept(cache) == []

    def test_a_compiler_that_fails_without_a_word(self, cache, monkeypatch, tmp_path):
        monkeypatch.setenv("CXX", str(script(tmp_path / "bad", "exit 1")))
        missing(match=r"the C\+\+ compiler .*bad failed: ")

    def test_a_compiler_that_writes_nothing(self, cache, monkeypatch, tmp_path):
        monkeypatch.setenv("CXX", str(script(tmp_path / "bad", "exit 0")))
        missing(match=r"kernels cannot be written to .*native \(No such file or directory\)")

    def test_a_compiler_that_is_no_program(self, cache, monkeypatch, tmp_path):
        (tmp_path / "bad").write_bytes(b"\0\1\2 no program")
        (tmp_path / "bad").chmod(0o755)
        monkeypatch.setenv("CXX", str(tmp_path / "bad"))
        missing(match=r"the C\+\+ compiler .*bad cannot be run \(Exec format error\)")

    @pytest.mark.parametrize("place", ["a file", "/proc/none"])
    def test_a_place_to_keep_it(self, runs, monkeypatch, tmp_path, place):
        (tmp_path / "a file").touch()
        monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / place))
        missing(match=r"the compiled kernels cannot be written to .*native \(")

    def test_a_home_directory(self, monkeypatch):
        monkeypatch.setenv("MINILLM_CACHE", "~no-such-user/x")
        with pytest.raises(InputError, match="MINILLM_CACHE is '~no-such-user/x', and there is no such home directory"):
            make_library()

    @pytest.mark.parametrize("left", [b"", b"half a libr"])
    def test_a_whole_library(self, runs, monkeypatch, tmp_path, left):
        """The message says which file to remove; that done, it works again."""
        name = Path(make_library()._name).name
        # Elsewhere: what a process has loaded from a path, it does not load again.
        monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "other"))
        file = tmp_path / "other" / "native" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(left)
        missing(match=rf"the compiled kernels {file} cannot be loaded \(.*\): remove the file")
        file.unlink()
        make_library()

    def test_then_a_model_runs_without_and_one_sentence_says_so(self, tmp_path, monkeypatch, capsys, cache):
        directory = save_tiny_model(tmp_path / "model", head_dim=16, hidden_size=96, intermediate_size=64)
        monkeypatch.setattr("minillm.native.decode_pass.native_library", make_library)
        capsys.readouterr()
        monkeypatch.setenv("CXX", "no-such-compiler")
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        for flags in ({"compile": True}, {"quantize": "int4"}):
            expected = LLM(directory, device="cpu", dtype="float32", **{**flags, "compile": False})
            assert capsys.readouterr().err == ""
            llm = LLM(directory, device="cpu", dtype="float32", **flags)
            err = capsys.readouterr().err
            assert err.startswith("going on without compiled decode: no C++ compiler: $CXX is 'no-such-compiler'")
            assert err.count("\n") == 1
            assert llm.model.decode_pass is None
            assert llm.generate("the cat", params).token_ids == expected.generate("the cat", params).token_ids

    def test_a_model_that_the_kernels_are_not_made_for_runs_without(self, tmp_path, capsys):
        directory = save_tiny_model(tmp_path / "model", head_dim=10)
        llm = LLM(directory, device="cpu", dtype="float32", compile=True)
        assert "going on without compiled decode: the C++ passes need a head_dim" in capsys.readouterr().err
        assert llm.generate("the cat", SamplingParams(max_tokens=5, ignore_eos=True)).token_ids


X86 = platform.machine() in ("x86_64", "AMD64")
LESSER = {
    "without AVX2": ["-march=x86-64"] if X86 else ["-fno-tree-vectorize"],
    "without AVX-512": ["-march=native", "-mno-avx512f"] if X86 else ["-march=native"],
}


@pytest.fixture(scope="module", params=LESSER)
def portable(request, tmp_path_factory):
    """The kernels for lesser processors of this kind: without some of the branches for this one."""
    flags = [flag for flag in build.FLAGS if flag not in ("-march=native", "-O3")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINILLM_CACHE", str(tmp_path_factory.mktemp("portable")))
        patch.setattr(build, "FLAGS", (*flags, "-O1", *LESSER[request.param]))
        yield make_library()


@pytest.mark.skipif(not X86, reason="AVX-512 is of x86")
def test_the_first_avx_512_is_enough_to_compile():
    """What `__AVX512F__` promises, and nothing of what came later. Translated only: it need not run here."""
    for unit in build.UNITS:
        command = [find_compiler(), "-std=c++17", "-S", "-mavx2", "-mf16c", "-mfma", "-mavx512f", "-fopenmp"]
        done = subprocess.run([*command, str(build.SOURCES / unit), "-o", os.devnull], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


class TestOnLesserProcessors:
    """The other branches are right too. They round differently: an input between two codes may fall to either side."""

    def pair(self, library: ctypes.CDLL, monkeypatch, format, **changes):
        sizes = {"hidden_size": 160, "num_attention_heads": 10, **changes}
        model = model_in(format, native_config(tie_word_embeddings=False, **sizes))
        native = NativeDecodePass(model)
        monkeypatch.setattr("minillm.native.decode_pass.native_library", lambda: library)
        return model, native, NativeDecodePass(model)

    @pytest.mark.parametrize("format", [None, *FORMATS])
    @pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.int8])
    def test_a_pass_gives_the_same_numbers(self, portable, monkeypatch, format, cache_dtype):
        model, native, plain = self.pair(portable, monkeypatch, format)
        for context in (0, 45, 150, 400):
            cache = random_cache(model.config, cache_dtype, context, 2)
            ids, logits = random_ids(1, batch=2), []
            for decode_pass in (native, plain):
                model.decode_pass = decode_pass
                logits.append(step(model, ids, cache))
            bound = 1e-4 if format is None and cache_dtype == torch.float32 else 5e-2
            assert float((logits[0] - logits[1]).abs().max()) < bound * max(1.0, float(logits[0].std()))

    @pytest.mark.parametrize("format", [None, *FORMATS])
    def test_a_product_gives_the_same_numbers(self, portable, monkeypatch, format):
        _, native, plain = self.pair(portable, monkeypatch, format)
        hidden = torch.randn(3, 160, generator=torch.Generator().manual_seed(0))
        assert torch.allclose(native.logits(hidden), plain.logits(hidden), atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("format", ["int8", "q8_0"])
    def test_the_largest_codes_overflow_nowhere(self, portable, monkeypatch, format):
        """A row of 16,384 products of one sign, as large as they can be: for the whole of it, 32 bits would not do."""
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
        model, native, plain = self.pair(portable, monkeypatch, format, hidden_size=16384, **sizes)
        weight = model.lm_head.weight
        weight.codes.fill_(-128)  # a file may have it
        weight.scale.fill_(1.0)
        for decode_pass in (native, plain):
            scores = decode_pass.logits(torch.full((1, 16384), 0.75))
            assert torch.allclose(scores, torch.tensor(-128 * 16384 * 0.75), rtol=1e-5)

    @pytest.mark.parametrize("head_dim", [16, 32])
    def test_in_bfloat16(self, portable, monkeypatch, head_dim):
        """Heads of 32 with tiles, which are plain C++ there."""
        sizes = {"head_dim": head_dim, "qkv_bias": True, "output_bias": True}
        model = model_in(None, native_config(**sizes), dtype=torch.bfloat16)
        has_tiles()  # the system must have been asked for them, where there are any
        monkeypatch.setattr("minillm.native.described_model.has_tiles", lambda: True)
        cache = random_cache(model.config, torch.bfloat16, 45)
        model.decode_pass = NativeDecodePass(model)
        expected = step(model, random_ids(1), cache)
        monkeypatch.setattr("minillm.native.decode_pass.native_library", lambda: portable)
        model.decode_pass = NativeDecodePass(model)
        assert torch.allclose(step(model, random_ids(1), cache), expected, atol=1e-3)

    @pytest.mark.parametrize("format", [None, *FORMATS])
    @pytest.mark.parametrize("in_tiles", [True, False])
    def test_a_prompt_gives_nearly_the_same_numbers(self, portable, monkeypatch, format, in_tiles):
        sizes = {"hidden_size": 160, "head_dim": 32, "qkv_bias": True}
        model = model_in(format, native_config(**sizes), dtype=torch.bfloat16, std=0.1)
        hidden = []
        has_tiles()  # the system must have been asked for them, where there are any
        for library in (native_library(), portable):
            with monkeypatch.context() as patch:
                patch.setattr("minillm.native.prompt_pass.has_tiles", lambda: in_tiles)
                patch.setattr("minillm.native.prompt_pass.floats_are_fast", lambda _: True)
                patch.setattr("minillm.native.prompt_pass.native_library", lambda library=library: library)
                prompt_pass = NativePromptPass(model)
            cache = random_cache(model.config, torch.bfloat16, 40, 2, room=120)
            hidden.append(prompt_pass.hidden(random_ids(75, batch=2), cache).float())
        assert float((hidden[0] - hidden[1]).square().mean()) < 2**-14 * float(hidden[0].square().mean())

    def test_prompts_in_floats_want_vectors(self, portable, request):
        """In bfloat16 as well as in float32: neither of these has instructions for bfloat16 alone."""
        wanted = X86 and "without AVX2" not in request.node.callspec.id
        assert [portable.floats_are_fast(for_bfloat16) for for_bfloat16 in (0, 1)] == [wanted, wanted]

    @pytest.mark.parametrize("format", ["q8_0", "q4_0", "q4_1"])
    def test_a_scale_that_is_no_number_is_none_here_too(self, portable, monkeypatch, format):
        model, _, plain = self.pair(portable, monkeypatch, format)
        for value in (torch.inf, torch.nan):
            model.lm_head.weight.scale.fill_(value)
            assert not plain.logits(torch.randn(1, 160)).isfinite().any()
