"""The engine on a reader's functions: the same tokens with right ones, an explosion with one that explodes."""

import asyncio
import sys
import types

import httpx
import pytest
import torch
from exercise_files import reference_source, write_exercises, write_solutions
from serving import NAME, running
from tiny import oracle_pair, random_ids, random_model, save_tiny_model, tiny_config

from minillm import LLM, SamplingParams
from minillm.cli import main as minillm
from minillm.engine import Engine
from minillm.engine.async_engine import AsyncEngine
from minillm.engine.log import StepLog
from minillm.errors import InputError
from minillm.exercises.binding import bind, reference
from minillm.exercises.manifest import EXERCISES, find, select
from minillm.exercises.mine import running_on_mine
from minillm.exercises.own_failure import OwnCodeError
from minillm.exercises.reset import reset
from minillm.kv_cache import KVCache
from minillm.model import Llama
from minillm.prefill import prefill
from minillm.server.settings import Settings

# What `generate` cannot do without.
IN_EVERY_RUN = [
    *("1.1", "2.1", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "4.1", "4.2", "4.3"),
    *("5.1", "5.2", "5.3", "5.5", "6.1", "6.2", "6.3", "7.2", "7.5", "8.1", "8.2", "8.5", "8.6"),
]
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=256))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The reader's directory."""
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    return tmp_path


@pytest.fixture
def generate(tiny_dir, capsys):
    """`minillm generate` on the tiny model: (exit code, stdout, stderr)."""

    def run(*flags):
        common = ("--prompt", "the cat sat", "--raw", "--max-tokens", "12", "--model", tiny_dir, "--dtype", "float32")
        code = minillm(["generate", *common, *flags])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def _canary(exercise_id):
    def explode(*args, **kwargs):
        raise RuntimeError(f"canary {exercise_id}")

    return explode


# --- binding ---------------------------------------------------------------------------------------------------------


@each_exercise
def test_binding_replaces_a_function_in_every_module_that_knows_it_and_gives_it_back(exercise, monkeypatch):
    home, _, name = exercise.reference.partition(":")
    importer = types.ModuleType("minillm.somebody_who_imported_it")
    importer.known_as = reference(exercise)
    monkeypatch.setitem(sys.modules, importer.__name__, importer)
    owner = sys.modules[home]
    if "." in name:
        owner = getattr(owner, name.split(".")[0])
    original = reference(exercise)
    with bind({exercise.id: _canary(exercise.id)}):
        latecomer = types.ModuleType("minillm.imported_while_bound")
        latecomer.known_as = getattr(owner, name.split(".")[-1])
        monkeypatch.setitem(sys.modules, latecomer.__name__, latecomer)
        for place in (getattr(owner, name.split(".")[-1]), importer.known_as, latecomer.known_as):
            with pytest.raises(OwnCodeError, match=f"your {exercise.id} .* raised RuntimeError: canary {exercise.id}"):
                place()
    assert reference(exercise) is original
    assert importer.known_as is original
    assert latecomer.known_as is original, "a module that was imported while bound keeps the reader's function"


def test_binding_is_undone_after_an_explosion_too():
    originals = [reference(exercise) for exercise in EXERCISES]
    with pytest.raises(ZeroDivisionError), bind({exercise.id: _canary(exercise.id) for exercise in EXERCISES}):
        raise ZeroDivisionError
    assert [reference(exercise) for exercise in EXERCISES] == originals


def test_a_canary_in_the_mask_explodes_in_the_second_chunk_of_a_prompt():
    model = random_model()
    ids = random_ids(9)
    with bind({"5.4": _canary("5.4")}) as calls, pytest.raises(OwnCodeError, match=r"RuntimeError: canary 5\.4"):
        prefill(model, ids, KVCache(model.config, 20), chunk_size=5)
    assert calls["5.4"] == 1


def test_a_canary_in_truncate_explodes_in_the_second_turn_of_a_chat(tiny_dir):
    llm = LLM(tiny_dir, device="cpu", dtype="float32")
    cache = llm.new_cache(64)
    first = llm.start("the cat", SamplingParams(max_tokens=4), cache=cache)
    first.run()
    with bind({"5.6": _canary("5.6")}), pytest.raises(OwnCodeError, match=r"RuntimeError: canary 5\.6"):
        llm.start("the cat sat", SamplingParams(max_tokens=4), cache=cache, cached_ids=first.prompt_ids)


@pytest.mark.parametrize("exercise_id", ["12.3", "12.4"])
def test_a_canary_in_the_scheduler_explodes_when_several_prompts_are_generated_together(tiny_dir, exercise_id):
    llm = LLM(tiny_dir, device="cpu", dtype="float32")
    expected = f"RuntimeError: canary {exercise_id}".replace(".", r"\.")
    with bind({exercise_id: _canary(exercise_id)}), pytest.raises(OwnCodeError, match=expected):
        llm.generate(["the cat", "sat"], SamplingParams(max_tokens=4))


def test_the_reader_s_scheduler_gives_the_tokens_of_the_engine_s_own_and_its_calls_are_counted(tiny_dir, own):
    write_solutions(own)
    llm, params = LLM(tiny_dir, device="cpu", dtype="float32"), SamplingParams(max_tokens=6, ignore_eos=True)
    expected = [answer.token_ids for answer in llm.generate(["the cat", "sat"], params)]
    said = []
    with running_on_mine("12.3,12.4", said.append):
        assert [answer.token_ids for answer in llm.generate(["the cat", "sat"], params)] == expected
    assert said[0] == "running on your own code: 12.3 continue_running, 12.4 make_room"
    assert said[1].startswith("calls of your code: 12.3 continue_running x 6, 12.4 make_room x ")


def many_requests():
    """The tokens of three requests in a pool that is too small for all: two share a prefix, one is there twice."""
    prompts = [random_ids(11, seed=seed)[0].tolist() for seed in (1, 2)]
    engine = Engine(random_model(), num_blocks=9, block_size=4, observer=StepLog().append)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    requests = [engine.add(ids, params) for ids in (prompts[0], [*prompts[0][:9], 3, 4], prompts[1], prompts[0])]
    while engine.has_work:
        engine.step()
    return [request.generated_ids for request in requests]


@pytest.mark.parametrize("exercise", select("13"), ids=lambda exercise: exercise.id)
def test_a_canary_of_chapter_13_explodes_when_many_requests_share_the_engine(exercise):
    told = rf"your {exercise.id} .* raised RuntimeError: canary {exercise.id}"
    with bind({exercise.id: _canary(exercise.id)}), pytest.raises(OwnCodeError, match=told):
        many_requests()


def test_many_requests_get_the_same_tokens_on_the_readers_own_blocks_and_prefixes(own):
    from minillm.exercises import reader_files

    write_solutions(own)
    expected = many_requests()
    with bind({exercise.id: reader_files.load(exercise) for exercise in select("13")}) as calls:
        assert many_requests() == expected
    assert set(calls) == {exercise.id for exercise in select("13")}, "some of the reader's code did not run"


def served(tiny_dir, **headers):
    """A server with a key on the tiny model: what it answers to one request. Whoever it refuses is told why."""
    with running(LLM(tiny_dir, device="cpu", dtype="float32"), Settings(api_key="k")) as server:
        asked = {"model": NAME, "prompt": "the cat", "temperature": 0, "max_tokens": 6}
        response = httpx.post(f"{server.url}/v1/completions", json=asked, headers=headers, timeout=60)
        server.wait_until_idle()
    return response


def test_a_canary_in_the_admission_is_what_a_client_is_told(tiny_dir):
    with bind({"17.3": _canary("17.3")}):
        response = served(tiny_dir, authorization="Bearer k")
    assert response.status_code == 400
    assert "RuntimeError: canary 17.3" in response.json()["error"]["message"]


def test_a_canary_at_the_door_lets_nobody_in(tiny_dir):
    with bind({"17.6": _canary("17.6")}) as calls:
        assert served(tiny_dir, authorization="Bearer k").status_code == 500
    assert calls["17.6"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_canary_that_ends_requests_ends_the_engine_s_thread_and_nobody_waits_for_it(tiny_dir):
    llm = LLM(tiny_dir, device="cpu", dtype="float32")

    async def one_request():
        engine = Engine(llm.model, num_blocks=20, block_size=4)
        async with AsyncEngine(engine, llm.tokenizer) as serving:
            await serving.generate([1, 2, 3], SamplingParams(max_tokens=2))
            await serving.close()
            return calls["17.2"]

    with bind({"17.2": _canary("17.2")}) as calls:
        assert asyncio.run(asyncio.wait_for(one_request(), timeout=60)) == 1


def test_a_server_answers_the_same_on_the_reader_s_own_code(tiny_dir, own):
    from minillm.exercises import reader_files

    write_solutions(own)
    key = {"authorization": "bearer   k"}
    expected = served(tiny_dir, **key).json()["choices"]
    with bind({exercise.id: reader_files.load(exercise) for exercise in select("17")}) as calls:
        assert served(tiny_dir, **key).json()["choices"] == expected
        assert served(tiny_dir).status_code == 401
    assert set(calls) == {"17.2", "17.3", "17.6"}, (
        "what a server calls; the others are its clients' and its dashboard's"
    )


def test_solutions_from_the_file_give_the_same_logits_in_chunks_and_after_a_step_back(own):
    from minillm.exercises import reader_files

    write_solutions(own)
    mine = {exercise.id: reader_files.load(exercise) for exercise in EXERCISES}
    model, ids = random_model(), random_ids(11)

    def logits():
        cache = KVCache(model.config, 20)
        prefill(model, ids[:, :9], cache, chunk_size=4)
        cache.truncate(6)
        return prefill(model, ids[:, 6:], cache)

    expected = logits()
    with bind(mine) as calls:
        torch.testing.assert_close(logits(), expected, rtol=0, atol=0)
    assert {"5.1", "5.2", "5.4", "5.5", "5.6"} <= set(calls), (
        "the reader's code did not run, or its calls of each other are not counted"
    )


def test_the_readers_own_forward_pass_gives_the_logits_of_transformers(own):
    from minillm.exercises import reader_files

    write_solutions(own)
    theirs, ours = oracle_pair(tiny_config(tie_word_embeddings=True))
    ids = random_ids(20)
    with torch.no_grad():
        expected = theirs(ids).logits[:, -1]
    with bind({exercise.id: reader_files.load(exercise) for exercise in select("3")}) as calls:
        model = Llama(ours.config)
        model.load_state_dict(ours.state_dict())
        cache = KVCache(model.config, 20)
        prefill(model, ids[:, :13], cache)
        logits = prefill(model, ids[:, 13:], cache)
    torch.testing.assert_close(logits, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)
    assert set(calls) == {exercise.id for exercise in select("3")}, "some of the reader's code did not run"


def test_a_bound_append_takes_a_cache_that_was_made_before():
    cache = KVCache(tiny_config(), 8)
    with bind({"5.2": lambda self, layer, k, v: ("mine", layer, self.max_seq_len)}):
        assert cache.append(2, None, None) == ("mine", 2, 8)


def test_what_a_bound_function_raises_is_told_once_with_the_innermost_of_its_lines():
    def inner():
        return {}["missing"]

    def outer(*args):
        return reference(find("5.3"))()

    with (
        bind({"5.3": lambda: inner(), "5.5": outer}),
        pytest.raises(OwnCodeError) as error,
    ):
        reference(find("5.5"))()
    assert str(error.value).startswith("your 5.3 (")
    assert """: `return {}["missing"]`) raised KeyError: 'missing'""" in str(error.value)


def test_ctrl_c_in_a_bound_function_stays_ctrl_c():
    def interrupted():
        raise KeyboardInterrupt

    with bind({"5.3": interrupted}), pytest.raises(KeyboardInterrupt):
        reference(find("5.3"))()


# --- generate --mine -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise_id", IN_EVERY_RUN)
def test_a_canary_bound_by_mine_makes_generate_explode(exercise_id, own, generate):
    name = find(exercise_id).name
    key = f"e{exercise_id.replace('.', '_')}"
    write_exercises(own, **{key: f"def {name}(*args, **kwargs):\n    raise RuntimeError('canary {exercise_id}')"})
    code, _, err = generate("--mine", exercise_id)
    assert code == 2
    assert f"error: your {exercise_id} (" in err
    assert f"raised RuntimeError: canary {exercise_id}" in err
    assert generate()[0] == 0, "the canary is still bound after the run"


def test_with_every_stub_filled_from_the_reference_the_tokens_are_the_same_and_each_run_is_counted(own, generate):
    write_solutions(own)
    code, expected, _ = generate()
    assert code == 0
    code, out, err = generate("--mine")
    assert (code, out) == (0, expected)
    bound = next(line for line in err.splitlines() if "running on your own code" in line)
    assert all(f"{exercise.id} {exercise.name}" in bound for exercise in EXERCISES)
    called = next(line for line in err.splitlines() if "calls of your code" in line)
    assert all(f"{exercise_id} {find(exercise_id).name} x " in called for exercise_id in IN_EVERY_RUN)
    assert "5.3 single_query_attention x 33" in called, "11 decode steps through 3 layers"
    unused = next(line for line in err.splitlines() if "not called in this run" in line)
    assert "5.6 truncate (called when a cache steps back, as in a chat); " in unused
    assert "5.7 tokens_that_fit" in unused
    assert unused.endswith(" (no part of a request)]")
    never = unused.rpartition(";")[2]
    assert all(f"{exercise.id} {exercise.name}" in never for exercise in EXERCISES if not exercise.called)


def test_mine_binds_what_is_finished_and_leaves_out_what_is_wrong_or_not_started(own, generate):
    write_exercises(own, e5_1=reference_source(find("5.1")), e5_3="def single_query_attention(q, k, v):\n    return q")
    code, _, err = generate("--mine")
    assert code == 0
    assert "running on your own code: 5.1 kv_bytes_per_token]" in err


def test_what_a_function_prints_while_it_is_graded_is_not_taken_for_tokens(own, generate):
    noisy = "def tokens_held(prompt_tokens, completion_tokens):\n    print('noise')\n    return 0"
    write_exercises(own, e1_3=noisy)
    assert generate("--mine")[1] == generate()[1]


def test_mine_says_so_where_nothing_is_finished(own, generate):
    write_exercises(own)
    code, out, err = generate("--mine")
    assert code == 0
    assert out == generate()[1]
    assert "none of your exercises is finished" in err


def test_chosen_ids_are_bound_even_if_they_are_wrong(own, generate):
    write_exercises(
        own, e5_3="def single_query_attention(q, k, v):\n    return q * 0", e5_1=reference_source(find("5.1"))
    )
    code, out, err = generate("--mine", "5.3")
    assert code == 0
    assert out != generate()[1], "attention that gives nothing must change the text"
    assert "running on your own code: 5.3 single_query_attention]" in err


@pytest.mark.parametrize(
    ("exercise_id", "code", "line", "raised"),
    [
        (
            "5.5",
            "def causal_attention(q, k, v):\n    return q @ 'k'",
            "return q @ 'k'",
            "TypeError: unsupported operand",
        ),
        (
            "5.5",
            "def causal_attention(q):\n    return q",
            "def causal_attention(q):",
            "TypeError: causal_attention() t",
        ),
        (
            "5.5",
            "import sys\ndef causal_attention(q, k, v):\n    sys.exit(0)",
            "sys.exit(0)",
            "SystemExit: 0",
        ),
        (
            "5.2",
            "from minillm.kv_cache import KVCache\ndef append(self, layer, k, v):\n"
            "    return KVCache.append(self, layer, k, v)",
            "return KVCache.append(self, layer, k, v)",
            "RecursionError: maximum recursion depth exceeded",
        ),
        (
            "5.5",
            "from minillm import attention\ndef causal_attention(q, k, v):\n"
            "    return attention.causal_attention(q, k, v)",
            "return attention.causal_attention(q, k, v)",
            "RecursionError: maximum recursion depth exceeded",
        ),
        ("5.2", "def append(self, layer, k, v):\n    raise InputError", "raise InputError", "InputError"),
    ],
)
def test_what_the_reader_s_function_raises_ends_the_run_in_one_sentence_with_its_line(
    exercise_id, code, line, raised, own, generate
):
    write_exercises(own, **{f"e{exercise_id.replace('.', '_')}": code})
    path = own / "ch05.py"
    lines = path.read_text(encoding="utf-8").splitlines()
    number = max(n for n, text in enumerate(lines, 1) if text.strip() == line)
    exit_code, out, err = generate("--mine", exercise_id)
    assert (exit_code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith(
        f"minillm generate: error: your {exercise_id} ({path}, line {number}: `{line}`) raised {raised}"
    )
    assert ("*is* your function" in last) == ("Recursion" in raised)


def test_an_accident_of_a_generator_is_told_with_its_line_though_it_comes_when_it_is_read(own, generate):
    loop = (
        "def decode_loop(model, logits, cache, params, prompt_ids):\n"
        "    yield Step(70, -1.0, None)\n    yield Step(71, -1.0, None)\n    raise RuntimeError('third')"
    )
    write_exercises(own, e6_3=loop)
    lines = (own / "ch06.py").read_text(encoding="utf-8").splitlines()
    number = lines.index("    raise RuntimeError('third')") + 1
    code, out, err = generate("--mine", "6.3")
    assert code == 2
    assert out.strip(), "the steps before it have been handed out"
    path = own / "ch06.py"
    assert f"your 6.3 ({path}, line {number}: `raise RuntimeError('third')`) raised RuntimeError: third" in err


def test_closing_a_reader_s_generator_reaches_it():
    ended = []

    def steps(*_):
        try:
            yield from range(9)
        finally:
            ended.append(True)

    with bind({"6.3": steps}):
        running = sys.modules["minillm.decode"].decode_loop()
        assert next(running) == 0
        running.close()
        assert ended == [True]
        assert list(running) == []


def test_an_engine_that_breaks_on_a_wrong_answer_names_the_exercise_and_one_that_breaks_on_right_ones_does_not(own):
    write_exercises(
        own, e5_1=reference_source(find("5.1")), e5_3="def single_query_attention(q, k, v):\n    return None"
    )
    with (
        pytest.raises(
            InputError, match=r"broke on .* \(TypeError: no None\). Your 5\.3 is not yet right: `minillm grade 5\.3`"
        ),
        running_on_mine("5.1,5.3", lambda _: None),
    ):
        raise TypeError("no\nNone")
    with pytest.raises(TypeError, match="a bug"), running_on_mine("5.1", lambda _: None):
        raise TypeError("a bug of the engine's keeps its traceback")


def test_an_id_that_is_named_twice_is_listed_once(own, generate):
    write_exercises(own, e5_1=reference_source(find("5.1")))
    assert "running on your own code: 5.1 kv_bytes_per_token]" in generate("--mine", "5.1,5.1, 5.1")[2]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("5.2,5.3", "5.2 and 5.3 are not started"),
        ("5.1, 5.2", "5.2 is not started"),
        ("9.9", "there is no exercise '9.9'"),
        ("5.4", "your 5.4 cannot be loaded: SyntaxError"),
        ("", "there is no exercise ''"),
    ],
)
def test_chosen_ids_that_cannot_be_bound_are_refused_in_one_sentence(wanted, told, own, generate):
    write_exercises(own, e5_1=reference_source(find("5.1")), e5_4="def causal_mask(:")
    code, out, err = generate("--mine", wanted)
    assert (code, out) == (2, "")
    assert told in err
    assert "Traceback" not in err


def test_what_waits_for_a_stub_is_told_so_and_not_called_wrong(generate, own):
    write_solutions(own)
    reset("5.3")
    code, _, err = generate("--mine")
    assert code == 0
    assert "stand in for them: 5.5 causal_attention waits for 5.3]" in err
    assert "not yet right" not in err
    code, _, err = generate("--mine", "5.5")
    assert code == 2
    assert "your 5.5 waits for 5.3, which it calls and which is not started: finish 5.3 first" in err


def test_what_is_started_and_not_right_is_named_and_not_used(generate, own):
    """Whoever breaks a function to see the engine break must be told that it was not the function that ran."""
    write_solutions(own)
    stubs = (own / "ch05.py").read_text(encoding="utf-8")
    (own / "ch05.py").write_text(stubs.replace("    return 2 * ", "    return 3 * ", 1), encoding="utf-8")
    code, _, err = generate("--mine")
    assert code == 0
    assert "the engine's own stand in for them: 5.1 kv_bytes_per_token" in err
    assert "5.1" not in next(line for line in err.splitlines() if "running on your own code" in line)
