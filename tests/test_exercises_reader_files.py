"""Accidents in a reader's file: each fails its own exercise alone, and shows the reader's own line."""

import itertools
import linecache
import textwrap
import threading
import time

import pytest
import torch
from exercise_files import reference_source, write_exercises, write_solutions

from minillm.errors import InputError
from minillm.exercises import check, reader_files, todo
from minillm.exercises.binding import reference
from minillm.exercises.grading import grade
from minillm.exercises.manifest import EXERCISES, find
from minillm.exercises.progress import Row, State, grade_own, row_of, state_of, table
from minillm.exercises.reset import reset
from minillm.exercises.time_limit import OutOfTimeError, call_with_limit

OTHERS = [exercise for exercise in EXERCISES if exercise.chapter == 5 and exercise.id != "5.3"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A directory of the reader's, with every exercise solved; `own(e5_3=...)` replaces sections."""
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    write_solutions(tmp_path)

    def write(**sections):
        solved = {f"e{e.id.replace('.', '_')}": reference_source(e) for e in EXERCISES}
        return write_exercises(tmp_path, **{**solved, **sections})

    return write


def _line_number(path, text):
    return next(n for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        ("def single_query_attention(q, k, v):\n    return q @@ k", "SyntaxError", "return q @@ k"),
        (
            "def single_query_attention(q, k, v):\n    return (q @ k",
            "SyntaxError: '(' was never closed",
            "return (q @ k",
        ),
        ("def single_query_attention(q, k, v):\nreturn q", "IndentationError", "return q"),
        ('def single_query_attention(q, k, v):\n    """open', "SyntaxError: unterminated", '"""open'),
        ("def single_query_attention(q, k, v):\n    return scores(q) @ v", "NameError", "return scores(q) @ v"),
        ("def single_query_attention(q, k, v):\n    x = q @ k\n    return x @ v", "RuntimeError", "x = q @ k"),
        ("def single_query_attention(q, k, v):\n    raise SystemExit(0)", "SystemExit", "raise SystemExit(0)"),
        (
            "import nothing_like_it\ndef single_query_attention(q, k, v):\n    return q",
            "ModuleNotFoundError",
            "import nothing_like_it",
        ),
        ("single_query_attention = 1 / 0", "ZeroDivisionError", "single_query_attention = 1 / 0"),
    ],
)
def test_an_accident_fails_its_own_exercise_alone_and_shows_the_line(own, code, message, line):
    path = own(e5_3=code) / "ch05.py"
    verdict = grade_own(find("5.3"))
    assert not verdict.passed
    assert f"came    {message}" in verdict.text
    assert f"line    {path}, line {_line_number(path, line)}: {line}" in verdict.text
    for exercise in OTHERS:
        if exercise.id != "5.5":  # which calls 5.3
            assert grade_own(exercise).passed, f"{exercise.id} fails for an accident in 5.3"


RIGHT_5_5 = """
    def causal_attention(q, k, v):
        allowed = helper(q, k)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)

    def helper(q, k):
        return causal_mask(q.shape[2], k.shape[2], q.device)
"""


def test_a_right_answer_that_calls_a_broken_one_is_sent_to_that_one(own):
    own(e5_5=RIGHT_5_5, e5_4="def causal_mask(q_len, kv_len, device=None:\n    return 1")
    text = grade_own(find("5.5")).text
    assert "It would pass, but your 5.4 (causal_mask), which it calls, cannot be run (SyntaxError" in text
    assert "Mend 5.4 first" in text
    assert "NameError" not in text


WRONG_5_4 = """
    def causal_mask(q_len, kv_len, device=None):
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril()
"""


def test_a_right_answer_that_calls_a_wrong_one_is_sent_to_that_one(own):
    own(e5_5=RIGHT_5_5, e5_4=WRONG_5_4)
    text = grade_own(find("5.5")).text
    assert "It would pass, but your 5.4 (causal_mask), which it calls, is not right yet. Mend 5.4 first" in text
    assert "likely" not in text, "a story of 5.5's own"
    assert grade_own(find("5.4")).text.count("upper left") == 1, "the reader's 5.4 is no longer looked at"


def test_two_wrong_answers_are_told_apart(own):
    own(e5_5=RIGHT_5_5.replace("attn_mask=allowed", "attn_mask=~allowed"), e5_4=WRONG_5_4)
    verdict = grade_own(find("5.5"))
    assert "also    your 5.4 (causal_mask), which it calls, is not right yet: here the engine's own" in verdict.text
    assert "given   q [" in verdict.text
    assert "It would pass" not in verdict.text


def test_a_wrong_answer_beside_a_wrong_one_that_it_does_not_call_hears_nothing_of_it(own):
    own(
        e5_5="def causal_attention(q, k, v):\n    rows = []\n    rows.append(q)\n    return q",
        e5_4=WRONG_5_4,
        e5_2="def append(self, layer, k, v):\n    return k, v",
    )
    text = grade_own(find("5.5")).text
    assert "5.4" not in text
    assert "5.2" not in text


def test_a_cell_s_answer_that_calls_a_wrong_one_is_sent_to_that_one(capsys):
    names = {"F": torch.nn.functional, "torch": torch, "__name__": "__main__"}
    exec(textwrap.dedent(RIGHT_5_5) + textwrap.dedent(WRONG_5_4), names)
    assert check("5.5", names["causal_attention"]) is False
    assert "Mend 5.4 first" in capsys.readouterr().out
    exec("def causal_mask(q_len, kv_len, device=None):\n    todo('5.4')", names | {"todo": todo}, made := {})
    names["causal_mask"] = made["causal_mask"]
    assert check("5.5", names["causal_attention"]) is False
    assert "It waits for 5.4" in capsys.readouterr().out
    names["causal_mask"] = reference(find("5.4"))
    assert check("5.5", names["causal_attention"]) is True


def test_a_cell_s_answer_that_calls_one_whose_cell_was_not_run_is_told_which(capsys):
    names = {"F": torch.nn.functional, "__name__": "__main__"}
    exec(textwrap.dedent(RIGHT_5_5), names)
    assert check("5.5", names["causal_attention"]) is False
    assert "your 5.4 (causal_mask), which it calls, is not defined" in capsys.readouterr().out


def test_a_line_in_a_notebook_s_cell_is_shown_as_that(capsys):
    source = "def tokens_that_fit(num_bytes, config, dtype, batch_size=1):\n    return num_bytes // nothing\n"
    file_name, names = "/somewhere/ipykernel_123/456789.py", {}
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)  # as IPython does
    exec(compile(source, file_name, "exec"), names)
    check("5.7", names["tokens_that_fit"])
    assert "line    your cell, line 2: return num_bytes // nothing" in capsys.readouterr().out


def test_the_engine_s_function_imported_in_the_place_of_one_s_own_is_refused(own):
    own(e5_4="from minillm.attention import causal_mask")
    assert "the engine's own causal_mask, imported from minillm.attention: give yours" in grade_own(find("5.4")).text


def test_a_loop_at_the_top_of_a_section_fails_that_section_alone(own, monkeypatch):
    monkeypatch.setattr(reader_files, "_SECTION_LIMIT_S", 0.2)
    own(e5_3="while True:\n    pass\n")
    assert "never ends" in grade_own(find("5.3")).text
    assert grade_own(find("5.1")).passed


def test_an_accident_in_the_header_is_told_of_each_exercise_of_the_file(own, tmp_path):
    path = tmp_path / "ch05.py"
    path.write_text("import torch torch\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert f"line    {path}, line 1: import torch torch" in grade_own(find("5.1")).text
    assert grade_own(find("1.1")).passed, "chapter 1 fails for an accident in chapter 5's file"


def test_helpers_in_other_sections_and_one_s_own_solutions_can_be_called(own):
    own(
        e5_1="def helper(config):\n    return 2 * config.num_hidden_layers * config.num_key_value_heads\n",
        e5_7="""
        def kv_bytes_per_token(config, dtype):
            return helper(config) * config.head_dim * dtype.itemsize

        def tokens_that_fit(num_bytes, config, dtype, batch_size=1):
            return num_bytes // (kv_bytes_per_token(config, dtype) * batch_size)
        """,
    )
    assert grade_own(find("5.7")).passed, grade_own(find("5.7")).text
    assert grade_own(find("5.1")).passed, "as in any module, a function is found wherever it stands"


def test_calling_an_exercise_that_is_not_started_says_which(own):
    own(e5_1="def kv_bytes_per_token(config, dtype):\n    todo('5.1')")
    verdict = grade_own(find("5.7"))
    assert "It waits for 5.1: your 5.1 (kv_bytes_per_token), which it calls, is not started." in verdict.text
    assert "Finish 5.1 first" in verdict.text
    assert verdict.waits_for == ("5.1",)


def test_a_wrong_answer_that_calls_a_stub_is_told_its_own_mistake_too(own):
    own(
        e5_1="def kv_bytes_per_token(config, dtype):\n    todo('5.1')",
        e5_7="def tokens_that_fit(b, config, dtype, n=1):\n    return b // kv_bytes_per_token(config, dtype)",
    )
    verdict = grade_own(find("5.7"))
    assert "You leave the batch out" in verdict.text
    assert "also    your 5.1 (kv_bytes_per_token), which it calls, is not started: here the engine's" in verdict.text
    assert verdict.waits_for == ()


def test_what_calls_an_answer_that_calls_a_stub_waits_for_the_stub_alone(own):
    own(
        e5_1="def kv_bytes_per_token(config, dtype):\n    todo('5.1')",
        e5_4="""
        def causal_mask(q_len, kv_len, device=None):
            assert isinstance(kv_bytes_per_token, object) and one_layer() > 0
            return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril(kv_len - q_len)

        def one_layer():
            return kv_bytes_per_token(ModelConfig(9, 8, 8, 1, 1, 1, 8, 9), torch.int8)
        """,
        e5_5=RIGHT_5_5,
    )
    assert grade_own(find("5.4")).waits_for == ("5.1",), grade_own(find("5.4")).text
    assert grade_own(find("5.5")).waits_for == ("5.1",), grade_own(find("5.5")).text


@pytest.mark.parametrize(
    "code",
    [
        "def causal_mask(q_len, kv_len, device=None):\n    todo('5.4')",
        "def causal_mask(q_len, kv_len, device=None):\n    return torch.ones(q_len, kv_len).bool()",
        "def causal_mask(q_len, kv_len, device=None:\n    return 1",
    ],
)
def test_the_table_sends_what_waits_to_what_it_waits_for(own, code):
    own(e5_5=RIGHT_5_5, e5_4=code)
    row = row_of(find("5.5"))
    assert row.state is State.WAITING
    assert row.next_step == "finish 5.4 first"
    line = next(line for line in table([row]).splitlines() if line.startswith("5.5"))
    assert "waits for 5.4" in line
    assert "hint" not in line


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n        pass",
        "while True:\n        try:\n            q.sum()\n        except Exception:\n            pass",
        "while True:\n        try:\n            len([1])\n        except:\n            pass",
        "while True:\n        try:\n            (lambda: 1)()\n        except BaseException:\n            continue",
        "while True:\n        try:\n            q.sum()\n        finally:\n            q.max()",
        "n = 0\n    while n >= 0:\n        try:\n            print(n)\n        except:\n            pass",
    ],
)
def test_a_loop_without_end_is_stopped_whatever_it_catches(own, body, monkeypatch):
    monkeypatch.setattr("minillm.exercises.progress.CASE_LIMIT_S", 0.2)
    path = own(e5_3=f"def single_query_attention(q, k, v):\n    {body}") / "ch05.py"
    text = grade_own(find("5.3")).text
    assert "still running after 0.2 s" in text
    assert f"line    {path}, line " in text
    assert not [thread for thread in threading.enumerate() if thread.name == "exercise"], "the loop is still running"
    assert grade_own(find("5.1")).passed


def test_code_that_waits_inside_a_library_is_left_behind(monkeypatch):
    monkeypatch.setattr("minillm.exercises.time_limit._INSIST_S", 0.05)
    with pytest.raises(OutOfTimeError) as error:
        call_with_limit(lambda: time.sleep(2), 0.05)
    assert any(name == __file__ for name, _ in error.value.lines)


def test_the_time_limit_passes_results_and_exceptions_on():
    assert call_with_limit(lambda: 3, 5.0) == 3
    with pytest.raises(KeyError):
        call_with_limit(lambda: {}["x"], 5.0)


def test_an_exercise_whose_function_is_gone_says_how_to_get_it_back(own):
    own(e5_6="# nothing here any more")
    text = grade_own(find("5.6")).text
    assert "no function `truncate`" in text
    assert "minillm exercises reset 5.6" in text


def test_a_missing_file_and_one_that_is_no_text_fail_their_exercises_and_no_others(own, tmp_path):
    path = tmp_path / "ch05.py"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in grade_own(find("5.1")).text
    path.unlink()
    assert "minillm exercises reset 5" in grade_own(find("5.1")).text
    assert reader_files.is_started(find("5.1")), "a file that is gone must not be skipped as untouched"
    assert state_of(find("5.1")) is State.NO_FILE
    assert grade_own(find("1.1")).passed
    with pytest.raises(InputError, match="minillm exercises reset 5"):
        reset("5.1")


def test_comments_and_blank_lines_do_not_count_as_a_start_but_any_code_does(own):
    own(
        e5_1='def kv_bytes_per_token(config, dtype):\n    """Mine."""\n\n    # to do\n    todo("5.1")',
        e5_2='def append(self, layer, k, v):\n    start = self.length\n    todo("5.2")',
    )
    assert state_of(find("5.1")) is State.NOT_STARTED
    assert state_of(find("5.2")) is State.STARTED
    assert state_of(find("5.4")) is State.FINISHED


def test_a_function_of_the_notebook_is_checked_like_one_of_the_file(capsys):
    source = "def mine(ttft_s, tpot_s, completion_tokens):\n    return ttft_s + tpot_s * missing\n"
    namespace = {}
    exec(compile(source, "<cell 7>", "exec"), namespace)
    assert check("1.2", namespace["mine"]) is False
    out = capsys.readouterr().out
    assert "NameError" in out
    assert "<cell 7>, line 2" in out


# --- what editors and headers bring along ---------------------------------------------------------------------------


def test_a_byte_order_mark_at_the_start_of_the_file_is_no_accident(own, tmp_path):
    path = tmp_path / "ch05.py"
    path.write_text("\ufeff" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert grade_own(find("5.1")).passed, grade_own(find("5.1")).text
    reset("5.1")
    assert not reader_files.is_started(find("5.1"))
    assert grade_own(find("5.2")).passed


def _prepend(path, line):
    path.write_text(line + "\n" + path.read_text(encoding="utf-8"), encoding="utf-8")


def test_a_future_import_in_the_header_reaches_the_sections(own, tmp_path):
    own(e5_1="def kv_bytes_per_token(config: NotThere, dtype) -> int:\n    return 1")
    assert "NotThere" in grade_own(find("5.1")).text
    _prepend(tmp_path / "ch05.py", "from __future__ import annotations")
    assert "wanted  the result: 23040" in grade_own(find("5.1")).text
    assert grade_own(find("5.2")).passed, grade_own(find("5.2")).text


def test_a_helper_may_be_a_dataclass_with_annotations_in_quotes(own):
    own(
        e5_1="""
        import dataclasses

        @dataclasses.dataclass
        class Shape:
            layers: "int"

            def all(self):
                return self.layers

        def kv_bytes_per_token(config, dtype):
            @dataclasses.dataclass
            class Inner:
                width: "int" = config.head_dim

            layers = Shape(config.num_hidden_layers).all()
            return 2 * layers * config.num_key_value_heads * Inner().width * dtype.itemsize
        """
    )
    assert grade_own(find("5.1")).passed, grade_own(find("5.1")).text


def test_a_default_dtype_that_the_reader_sets_ends_with_the_reader_s_code(own, tmp_path):
    setting = "torch.set_default_dtype(torch.float64)"
    body = f"{setting}\n    return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril(kv_len - q_len)"
    own(e5_4=f"def causal_mask(q_len, kv_len, device=None):\n    {body}")
    _prepend(tmp_path / "ch05.py", f"import torch\n{setting}")
    try:
        for exercise in EXERCISES:
            verdict = grade_own(exercise)
            assert verdict.passed, verdict.text
            assert torch.get_default_dtype() is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_exercise_that_occurs_twice_is_told_with_both_lines_and_reset_leaves_one_stub(own, tmp_path):
    path = tmp_path / "ch05.py"
    text = path.read_text(encoding="utf-8")
    section = reader_files.cut(text)[1]["5.3"]
    path.write_text(text.rstrip("\n") + "\n\n\n" + section.text, encoding="utf-8")
    second = path.read_text(encoding="utf-8").splitlines().index(section.text.splitlines()[0], section.first_line) + 1
    told = grade_own(find("5.3")).text
    assert f"occurs 2 times in {path}, at lines {section.first_line} and {second}" in told
    assert grade_own(find("5.2")).passed
    reset("5.3")
    after = path.read_text(encoding="utf-8")
    assert after.count("# --- 5.3 ") == 1
    assert not reader_files.is_started(find("5.3"))
    kept = (tmp_path / "kept" / "ch05_5.3_1.py").read_text(encoding="utf-8")
    assert kept.count("# --- 5.3 ") == 2, "one of the two versions is lost"
    assert grade_own(find("5.7")).passed


def test_stubs_that_occur_twice_are_not_skipped_as_untouched(own, tmp_path):
    path = tmp_path / "ch05.py"
    path.write_text(reader_files.pristine("ch05.py") + "\n\n# --- 5.3 ---\n", encoding="utf-8")
    assert reader_files.is_started(find("5.3"))


def test_a_directory_that_is_not_there_is_made_by_reset(tmp_path, monkeypatch):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path / "not" / "there"))
    assert state_of(find("1.1")) is State.NO_FILE
    assert "no file" in table([Row(find("1.1"), State.NO_FILE)])
    assert "minillm exercises reset 1" in Row(find("1.1"), State.NO_FILE).next_step
    assert "has its stubs again" in reset("1")
    assert (tmp_path / "not" / "there" / "ch01.py").read_text(encoding="utf-8") == reader_files.pristine("ch01.py")
    assert state_of(find("1.1")) is State.NOT_STARTED


# --- reset -----------------------------------------------------------------------------------------------------------


def test_reset_gives_a_stub_back_and_keeps_every_version(own, tmp_path):
    first = reference_source(find("5.3"))
    assert "is a stub again" in reset("5.3")
    assert not reader_files.is_started(find("5.3"))
    assert all(grade_own(exercise).passed for exercise in OTHERS if exercise.id != "5.5")
    assert first.strip() in (tmp_path / "kept" / "ch05_5.3_1.py").read_text(encoding="utf-8")
    own(e5_3="def single_query_attention(q, k, v):\n    return second")
    assert "ch05_5.3_2.py" in reset("5.3")
    assert "second" in (tmp_path / "kept" / "ch05_5.3_2.py").read_text(encoding="utf-8")
    assert (tmp_path / "kept" / ".gitignore").read_text(encoding="utf-8") == "*\n"
    assert "nothing to do" in reset("5.3")


def test_resetting_every_exercise_gives_the_files_as_they_were_given_out(own, tmp_path):
    for exercise in EXERCISES:
        reset(exercise.id)
    for name in ("ch01.py", "ch05.py"):
        assert (tmp_path / name).read_text(encoding="utf-8") == reader_files.pristine(name)


def test_reset_of_a_chapter_gives_the_file_back_even_if_it_is_gone_or_broken(own, tmp_path):
    path = tmp_path / "ch05.py"
    path.write_text("all ( broken", encoding="utf-8")
    assert "ch05_1.py" in reset("5")
    assert path.read_text(encoding="utf-8") == reader_files.pristine("ch05.py")
    assert "nothing to do" in reset("5")
    path.unlink()
    assert "has its stubs again" in reset("5")


def test_reset_of_an_exercise_without_its_marker_is_refused(own, tmp_path):
    path = tmp_path / "ch05.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("# --- 5.4 ", "# 5.4 "), encoding="utf-8")
    assert grade_own(find("5.4")).passed, "the function is there, and can be graded"
    with pytest.raises(InputError, match=r"# --- 5\.4.*missing"):
        reset("5.4")
    assert path.read_text(encoding="utf-8") == text.replace("# --- 5.4 ", "# 5.4 ")


def test_the_stub_of_5_5_says_that_a_mask_in_a_decode_step_is_not_graded():
    stub = reader_files.cut(reader_files.pristine("ch05.py"))[1]["5.5"].text
    assert "that a decode step needs no mask is worth using, and not graded" in stub
    assert grade(find("5.5"), always_masking).passed, "graded after all: the stub says that it is not"


def always_masking(q, k, v):
    allowed = reference(find("5.4"))(q.shape[2], k.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)


def test_cutting_a_file_loses_nothing():
    for name in ("ch01.py", "ch05.py"):
        text = reader_files.pristine(name)
        header, sections = reader_files.cut(text)
        assert header.text + "".join(section.text for section in sections.values()) == text
        for before, after in itertools.pairwise(sections.values()):
            assert after.first_line > before.first_line
        for exercise_id, section in sections.items():
            assert text.splitlines()[section.first_line - 1].startswith(f"# --- {exercise_id} ")


def test_grading_an_unlimited_answer_of_another_type_does_not_raise():
    assert not grade(find("5.2"), lambda self, layer, k, v: (k,)).passed
