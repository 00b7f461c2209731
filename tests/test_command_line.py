"""`minillm generate` and `minillm chat` as a user runs them: which stream gets what, and how bad input is answered."""

import importlib.metadata
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from in_process import call
from tiny import save_tiny_model

from minillm import LLM, SamplingParams, bench, chat, generate
from minillm.chat import ChatSession
from minillm.cli import wait_politely
from minillm.errors import InputError, NumbersError


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=256))


@pytest.fixture(scope="module")
def tiny(tiny_dir):
    return LLM(tiny_dir, device="cpu", dtype="float32")


def run(args, tiny_dir, *, stdin=b"", **kwargs):
    """`python -m minillm.<verb> ... --model tiny` in a process of its own."""
    verb, *rest = args
    command = [sys.executable, "-m", f"minillm.{verb}", *rest, "--model", tiny_dir, "--dtype", "float32"]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120, check=False, **kwargs)


def on(directory):
    """The flags for this model in float32."""
    return "--model", directory, "--dtype", "float32"


def test_only_the_completion_is_on_stdout_and_it_is_the_library_s(tiny_dir, tiny, capsys):
    expected = tiny.generate("the cat", SamplingParams(max_tokens=9)).text
    code, out, err = call(capsys, "generate", "--prompt", "the cat", "--raw", "--max-tokens", "9", *on(tiny_dir))
    assert (code, out) == (0, expected + "\n")
    assert "tokens in" in err


def test_a_chat_template_is_used_unless_raw(tiny_dir, tiny, capsys):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "the cat"}]
    expected = tiny.chat(messages, SamplingParams(max_tokens=9)).text
    args = ("--prompt", "the cat", "--system", "s", "--max-tokens", "9")
    code, out, err = call(capsys, "generate", *args, *on(tiny_dir))
    assert (code, out) == (0, expected + "\n")
    assert "chat template" in err


def test_a_model_without_a_template_continues_the_prompt_and_says_so(tmp_path, capsys):
    directory = str(save_tiny_model(tmp_path, chat_template=None))
    code, _, err = call(capsys, "generate", "--prompt", "hi", "--max-tokens", "2", "--model", directory)
    assert code == 0
    assert "no chat template" in err
    code, _, err = call(capsys, "generate", "--prompt", "hi", "--system", "s", "--model", directory)
    assert code == 2
    assert "--system needs a chat template" in err


@pytest.mark.parametrize("last", [True, False])
def test_the_summary_says_that_a_stop_string_ended_it_even_with_the_last_token(tiny_dir, tiny, last):
    text = tiny.generate("the cat", SamplingParams(max_tokens=6, ignore_eos=True)).text
    stop = text[-1] if last else text[0]
    args = ["generate", "--raw", "--prompt", "the cat", "--max-tokens", "6", "--ignore-eos", "--stop", stop]
    assert run(args, tiny_dir).stderr.decode().rstrip().endswith("; stop string found]")


def test_the_prompt_comes_from_a_file_or_from_stdin(tiny_dir, tiny, tmp_path):
    text = "the cät 🙂"
    expected = (tiny.generate(text, SamplingParams(max_tokens=6)).text + "\n").encode()
    file = tmp_path / "prompt.txt"
    file.write_text(text, encoding="utf-8")
    args = ["generate", "--raw", "--max-tokens", "6"]
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    assert run([*args, "--prompt-file", str(file)], tiny_dir, env=env).stdout == expected
    assert run([*args, "--prompt-file", "-"], tiny_dir, stdin=text.encode(), env=env).stdout == expected
    assert run(args, tiny_dir, stdin=text.encode(), env=env).stdout == expected


def test_json_is_one_object_with_everything(tiny_dir, tiny, capsys):
    args = ("--prompt", "the cat", "--raw", "--max-tokens", "4", "--json", "--logprobs", "2", "--ignore-eos")
    code, out, _ = call(capsys, "generate", *args, *on(tiny_dir))
    result = json.loads(out)
    expected = tiny.generate("the cat", SamplingParams(max_tokens=4, logprobs=2, ignore_eos=True))
    assert code == 0
    assert result["text"] == expected.text
    assert result["token_ids"] == list(expected.token_ids)
    assert result["finish_reason"] == "length"
    assert len(result["logprobs"][0]["top"]) == 2
    assert set(result["metrics"]) >= {"ttft_s", "tpot_s", "kv_bytes", "prefill_tokens_per_s"}


def test_trace_and_stats_go_to_stderr_as_plain_text(tiny_dir):
    args = [
        "generate",
        "--prompt",
        "the cat",
        "--raw",
        "--max-tokens",
        "4",
        "--ignore-eos",
        "--trace",
        "--stats",
    ]
    done = run(args, tiny_dir)
    err = done.stderr.decode()
    assert done.returncode == 0
    for word in (
        "tokenize",
        "prefill",
        "sample",
        "decode x 3",
        "detokenize",
        "TTFT",
        "TPOT",
        "KV cache",
        "MBU",
        "no program can decode faster",
    ):
        assert word in err
    assert "\x1b" not in err, "no escape sequences outside a terminal"
    assert b"prefill" not in done.stdout
    assert all(line == line.rstrip() for line in err.splitlines()), "no padding outside a terminal"


def test_no_cache_prints_the_same_text(tiny_dir, capsys):
    args = (
        "generate",
        "--prompt",
        "the cat",
        "--raw",
        "--max-tokens",
        "8",
        "--model",
        tiny_dir,
        "--trace",
        "--stats",
    )
    _, cached, _ = call(capsys, *args)
    code, recomputed, err = call(capsys, *args, "--no-cache")
    assert (code, recomputed) == (0, cached)
    assert "computed again" in err


WRONG = {
    "no such model": (["--prompt", "x", "--model", "no-such-model"], "no-such-model"),
    "a directory that is no model": (["--prompt", "x", "--model", "{empty}"], "config.json"),
    "an empty prompt": (["--prompt", ""], "prompt is empty"),
    "an empty raw prompt": (["--prompt", "", "--raw"], "prompt is empty"),
    "a prompt longer than the context": (["--prompt", "word " * 400, "--raw"], "context of 256"),
    "no tokens": (["--prompt", "x", "--max-tokens", "0"], "max_tokens"),
    "fewer than no tokens": (["--prompt", "x", "--max-tokens", "-3"], "max_tokens"),
    "a temperature below zero": (["--prompt", "x", "--temperature", "-1"], "temperature"),
    "a temperature that is no number": (["--prompt", "x", "--temperature", "nan"], "temperature"),
    "top_p of zero": (["--prompt", "x", "--top-p", "0"], "top_p"),
    "top_p above one": (["--prompt", "x", "--top-p", "1.5"], "top_p"),
    "an unknown dtype": (["--prompt", "x", "--dtype", "int3"], "int3"),
    "an unknown device": (["--prompt", "x", "--device", "gpu"], "gpu"),
    "a device number beyond all numbers": (
        ["--prompt", "x", "--device", "cuda:99999999999999999999"],
        "unknown device",
    ),
    "an empty model name": (["--prompt", "x", "--model", ""], "no model"),
    "an empty stop string": (["--prompt", "x", "--stop", ""], "stop"),
    "a stop string that is no text": (["--prompt", "x", "--stop", "\udcff"], "stop"),
    "a model name longer than any path": (["--prompt", "x", "--model", "m" * 5000], "no model"),
    "two prompts": (["--prompt", "x", "--prompt-file", "y"], "two prompts"),
    "a prompt file that is not there": (["--prompt-file", "no-such-file"], "no-such-file"),
    "raw and a system message": (["--prompt", "x", "--raw", "--system", "s"], "--system"),
    "log-probabilities nobody would see": (["--prompt", "x", "--logprobs", "2"], "--json"),
    "words where a number should be": (["--prompt", "x", "--max-tokens", "many"], "many"),
    "an unknown flag": (["--prompt", "x", "--turbo"], "--turbo"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_answered_by_one_sentence_and_exit_code_2(name, tiny_dir, tmp_path, capsys):
    args, word = WRONG[name]
    args = [arg.replace("{empty}", str(tmp_path)) for arg in args]
    model = [] if "--model" in args else ["--model", tiny_dir]
    code, out, err = call(capsys, "generate", *args, *model)
    assert code == 2
    assert out == "", "nothing on stdout"
    assert word in err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if "error:" in line]) == 1
    assert list(tmp_path.iterdir()) == [], "nothing written"


def test_a_full_disk_is_one_sentence(tiny_dir):
    command = f"{sys.executable} -m minillm.generate --raw --prompt 'the cat' --model {tiny_dir} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_remarks_never_go_to_stdout_not_even_where_stderr_is_closed(tiny_dir, tiny):
    command = f"{sys.executable} -m minillm.generate --raw --prompt 'the cat' --max-tokens 3 --model {tiny_dir} 2>&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout.decode() == tiny.generate("the cat", SamplingParams(max_tokens=3)).text + "\n"


def test_numbers_that_fail_are_one_sentence_and_nothing_on_stdout(tiny_dir, monkeypatch, capsys):
    def fail(*args):
        raise NumbersError("NaN")

    monkeypatch.setattr("minillm.decode.sample_one", fail)
    code, out, err = call(capsys, "generate", "--prompt", "x", "--raw", *on(tiny_dir))
    assert (code, out) == (2, "")
    assert "error: NaN" in err


FLAGS = {
    "--max-tokens": ("7", {"max_tokens": 7}),
    "--temperature": ("0.5", {"temperature": 0.5}),
    "--top-k": ("3", {"top_k": 3}),
    "--top-p": ("0.25", {"top_p": 0.25}),
    "--min-p": ("0.125", {"min_p": 0.125}),
    "--repetition-penalty": ("1.5", {"repetition_penalty": 1.5}),
    "--presence-penalty": ("0.5", {"presence_penalty": 0.5}),
    "--frequency-penalty": ("0.75", {"frequency_penalty": 0.75}),
    "--seed": ("11", {"seed": 11}),
    "--stop": ("end", {"stop": ("end",)}),
    "--ignore-eos": (None, {"ignore_eos": True}),
}


@pytest.mark.parametrize("verb", ["generate", "chat"])
@pytest.mark.parametrize("flag", FLAGS)
def test_every_sampling_flag_reaches_the_request(verb, flag, tiny_dir, monkeypatch, capsys):
    value, fields = FLAGS[flag]
    asked = []
    start = LLM.start

    def watched(self, prompt, params, **rest):
        asked.append(params)
        return start(self, prompt, params, **rest)

    monkeypatch.setattr(LLM, "start", watched)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
    limit = [] if flag == "--max-tokens" else ["--max-tokens", "2"]
    code, _, err = call(capsys, verb, flag, *([] if value is None else [value]), *limit, *on(tiny_dir))
    assert code == 0, err
    assert asked == [SamplingParams(**{"max_tokens": 2, **fields})]


def test_help_states_the_defaults_that_hold(capsys):
    _, out, _ = call(capsys, "generate", "--help")
    assert f"(default: {SamplingParams().max_tokens})" in " ".join(out.split())


def test_the_version_is_the_package_s(capsys):
    code, out, _ = call(capsys, "--version")
    assert (code, out) == (0, f"minillm {importlib.metadata.version('minillm')}\n")


def test_the_package_itself_is_the_console_script():
    done = subprocess.run([sys.executable, "-m", "minillm", "--help"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert b"generate" in done.stdout


def test_bytes_that_are_not_utf8_are_refused(tiny_dir):
    done = run(["generate", "--raw"], tiny_dir, stdin=b"\xff\xfe")
    assert done.returncode == 2
    assert b"not UTF-8" in done.stderr


@pytest.mark.parametrize(("closed", "code", "word"), [(">&-", 2, "stdout is closed"), ("<&-", 2, "prompt is empty")])
def test_a_closed_stream_is_one_sentence(tiny_dir, closed, code, word):
    command = f"{sys.executable} -m minillm.generate --raw --model {tiny_dir} {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_keeps_what_was_generated(tiny_dir, tmp_path):
    """The interrupt comes once the first text is there; what was printed stays, and a summary says how it ended."""
    directory = str(save_tiny_model(tmp_path, max_position_embeddings=4000))
    command = [sys.executable, "-m", "minillm.generate", "--raw", "--prompt", "the cat", "--ignore-eos"]
    command += ["--max-tokens", "3900", "--model", directory, "--temperature", "1", "--seed", "1", "--stats"]
    # A test run in the background of a shell ignores the interrupt, and its children inherit that.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first = process.stdout.read(1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + rest).strip()
    assert b"interrupted" in err
    assert b"TTFT" in err
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_error(tiny_dir, tmp_path):
    directory = str(save_tiny_model(tmp_path, max_position_embeddings=4000))
    command = [sys.executable, "-m", "minillm.generate", "--raw", "--prompt", "the cat", "--ignore-eos"]
    command += ["--max-tokens", "3900", "--model", directory]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


def test_a_conversation_computes_only_what_is_new(tiny):
    session = ChatSession(tiny)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    computed = []
    for turn, text in enumerate(["the cat sat", "on the mat", "and the dog"]):
        generation = session.start(text, params)
        for _ in generation:
            pass
        session.commit(generation)
        assert generation.prompt_ids == tuple(tiny.tokenizer.encode_chat(session.messages[:-1]))
        computed.append(len(generation.prompt_ids) - generation.cached_tokens)
        fresh = tiny.chat(session.messages[:-1], params)
        assert fresh.text == generation.text, f"turn {turn}: the kept cache must not change the answer"
        assert session.cache.length == len(session.cached_ids)
    assert computed[2] < len(generation.prompt_ids) / 2, f"computed {computed} of {len(generation.prompt_ids)}"


def test_an_answer_stopped_in_the_middle_leaves_a_conversation_that_goes_on(tiny):
    session = ChatSession(tiny)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    stopped = session.start("the cat sat", params)
    pieces = iter(stopped)
    for _ in range(5):
        next(pieces)
    session.commit(stopped)
    following = session.start("go on", params)
    for _ in following:
        pass
    assert following.text == tiny.chat(session.messages, params).text


def test_a_conversation_that_outgrows_its_room_says_so_and_stays_as_it_was(tiny):
    session = ChatSession(tiny, context=100)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    first = session.start("hi", params)
    for _ in first:
        pass
    session.commit(first)
    before = list(session.messages)
    with pytest.raises(InputError, match="/reset"):
        session.start("x" * 80, params)
    assert session.messages == before
    again = session.start("yo", params)
    for _ in again:
        pass
    assert again.text == tiny.chat(session.messages, SamplingParams(max_tokens=len(again.steps), ignore_eos=True)).text


def test_a_conversation_as_long_as_the_models_context_says_how_to_go_on(tiny):
    session = ChatSession(tiny)
    with pytest.raises(InputError, match="/reset"):
        session.start("x" * 400, SamplingParams(max_tokens=3))


def test_a_new_conversation_keeps_its_system_message(tiny):
    session = ChatSession(tiny, system="the dog")
    session.start("hi", SamplingParams(max_tokens=3))
    session.reset()
    again = session.start("yo", SamplingParams(max_tokens=3))
    messages = [{"role": "system", "content": "the dog"}, {"role": "user", "content": "yo"}]
    assert list(again.prompt_ids) == tiny.tokenizer.encode_chat(messages)


def test_what_the_new_conversation_does_not_share_is_forgotten(tiny):
    """After /reset the cache holds ids that the next turn does not begin with: they must not be taken for its own."""
    session = ChatSession(tiny)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    first = session.start("the cat sat on the mat", params)
    first.run()
    session.commit(first)
    session.reset()
    stopped = session.start("no", params)  # never run: the cache is cut back to what the two turns share
    assert len(session.cached_ids) == session.cache.length == stopped.cached_tokens
    session.reset()
    again = session.start("the cat sat on the mat", params)
    assert again.cached_tokens == stopped.cached_tokens
    assert again.run().text == first.text


def test_the_system_message_of_the_command_line_opens_the_conversation(tiny_dir, tiny):
    done = run(["chat", "--system", "the dog", "--max-tokens", "5"], tiny_dir, stdin=b"the cat\n")
    messages = [{"role": "system", "content": "the dog"}, {"role": "user", "content": "the cat"}]
    answer = tiny.chat(messages, SamplingParams(max_tokens=5)).text
    assert answer != tiny.chat(messages[1:], SamplingParams(max_tokens=5)).text, "the message must matter"
    assert done.stdout.decode(errors="replace") == f"{answer}\n"


def test_a_system_message_that_is_no_text_is_refused_before_the_first_turn(tiny_dir):
    done = run(["chat", "--system", b"\xff"], tiny_dir, stdin=b"the cat\n")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"surrogate" in done.stderr


def test_a_line_that_is_no_text_does_not_end_the_conversation(tiny_dir, tiny):
    done = run(["chat", "--max-tokens", "5"], tiny_dir, stdin=b"\xff\xfe\nthe cat\r\n")
    answer = tiny.chat([{"role": "user", "content": "the cat"}], SamplingParams(max_tokens=5)).text
    assert done.stdout.decode(errors="replace") == f"{answer}\n"
    assert b"not UTF-8" in done.stderr


def test_the_chat_command_answers_line_by_line(tiny_dir, tiny):
    done = run(["chat", "--max-tokens", "5"], tiny_dir, stdin=b"the cat\n/reset\nthe cat\n/what\n/exit\nnot read\n")
    answer = tiny.chat([{"role": "user", "content": "the cat"}], SamplingParams(max_tokens=5)).text
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode(errors="replace") == f"{answer}\n{answer}\n"
    assert b"a new conversation" in done.stderr
    assert b"no command '/what'" in done.stderr


def test_the_console_script_lists_its_verbs(capsys):
    code, _, err = call(capsys)
    assert code == 2
    assert "generate" in err
    assert "chat" in err
    code, _, err = call(capsys, "dance")
    assert code == 2
    assert "dance" in err


def test_help_needs_no_torch():
    """Flags are answered before the heavy libraries are imported."""
    for module in (generate, chat, bench):
        probe = f"import sys, {module.__name__} as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"  # noqa: E501
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(("busy", "wish", "spin"), [(True, None, "1000"), (False, None, None), (True, "7", "7")])
def test_threads_sleep_on_a_busy_machine_unless_the_user_wishes_otherwise(monkeypatch, busy, wish, spin):
    monkeypatch.setattr("minillm.cli._others_are_running", lambda: busy)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", wish or "")  # so that it is restored afterwards
    if wish is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    wait_politely()
    assert os.environ.get("GOMP_SPINCOUNT") == spin


def test_remarks_that_nobody_reads_do_not_cost_the_answer(tiny_dir, tmp_path):
    out = tmp_path / "out"
    command = f"{sys.executable} -m minillm.generate --raw --prompt 'the cat' --max-tokens 3 --model {tiny_dir}"
    subprocess.run(["bash", "-c", f"{command} 2> >(exec true) > {out}"], timeout=60, check=True)
    assert len(out.read_bytes()) > 1


@pytest.mark.parametrize("verb", ["generate", "chat"])
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--quantize", "int3"], "unknown quantization 'int3': use int8, int4, or file for a GGUF file's own"),
        (["--quantize", "file"], "is not quantized (to q8_0, q4_1 or q4_0): use int8 or int4"),
        (["--quantize", "int8"], "int8 needs matrices whose rows are multiples of 32 long, not of 48 numbers"),
        (["--kv-dtype", "fp8"], "unknown kv_dtype 'fp8': use int8, or auto for the model's own dtype"),
        (["--compile=yes"], "argument --compile/--no-compile: ignored explicit argument 'yes' (see --help)"),
    ],
)
def test_a_bad_word_for_how_to_keep_weights_is_one_sentence(tiny_dir, capsys, verb, flags, sentence):
    prompt = ["--prompt", "hi"] if verb == "generate" else []
    code, out, err = call(capsys, verb, *prompt, *flags, *on(tiny_dir))
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_the_flags_reach_the_model(tmp_path, capsys, monkeypatch):
    directory = str(save_tiny_model(tmp_path, hidden_size=96, intermediate_size=64, head_dim=16))
    made = []
    monkeypatch.setattr("minillm.llm.compile_decode", lambda model, say: made.append(model))
    for flags, compiled in (
        ([], 0),
        (["--compile"], 1),
        (["--quantize", "int4"], 1),
        (["--quantize", "int4", "--no-compile"], 0),
    ):
        made.clear()
        args = ("--prompt", "the cat", "--raw", "--max-tokens", "3", *flags, *on(directory))
        assert call(capsys, "generate", *args)[0] == 0
        assert len(made) == compiled, flags
    args = (
        "--prompt",
        "the cat",
        "--raw",
        "--max-tokens",
        "9",
        "--quantize",
        "int8",
        "--kv-dtype",
        "int8",
        *on(directory),
    )
    llm = LLM(directory, device="cpu", dtype="float32", quantize="int8", kv_dtype="int8", compile=False)
    expected = llm.generate("the cat", SamplingParams(max_tokens=9)).text
    assert call(capsys, "generate", *args, "--no-compile")[:2] == (0, expected + "\n")
