"""`pytest --ch`, `pytest --hint`, `minillm grade` and `minillm exercises`, as a reader types them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from exercise_files import reference_source, write_exercises, write_solutions
from in_process import call

from minillm.exercises import hint, reader_files
from minillm.exercises.checkout import checkout
from minillm.exercises.manifest import EXERCISES, find

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def shell(tmp_path):
    """Run a command at the root of the repository, on the reader's files in tmp_path."""

    def run(*command, cwd=ROOT):
        environment = {**os.environ, "MINILLM_EXERCISES": str(tmp_path), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_stubs_are_skipped_with_a_reason_and_what_is_started_is_graded(shell, tmp_path):
    write_exercises(tmp_path)
    code, out = shell("pytest", "-rs", "tests/test_exercises.py")
    assert code == 0, out
    assert f"{len(EXERCISES)} skipped" in out
    assert "5.1 is not started" in out
    assert "`pytest --ch 5` grades its chapter" in out
    write_exercises(tmp_path, e1_2="def request_seconds(ttft_s, tpot_s, completion_tokens):\n    return 0.0")
    code, out = shell("pytest", "tests/test_exercises.py")
    assert code == 1, "a wrong answer passes"
    assert f"1 failed, {len(EXERCISES) - 1} skipped" in out


def test_ch_fails_on_stubs_and_shows_the_next_steps(shell, tmp_path):
    write_exercises(tmp_path, e5_1=reference_source(find("5.1")), e5_4="def causal_mask(q_len, kv_len):\n    return 1")
    code, out = shell("pytest", "--ch", "5")
    assert code == 1, out
    assert "collected 7 items" in out
    assert "6 failed, 1 passed" in out
    assert "skipped" not in out
    assert "1.1" not in out, "another chapter's exercises are none of its business"
    table = out.partition("= your exercises =")[2]
    rows = {line.split()[0]: line for line in table.splitlines() if line.startswith("5.")}
    assert set(rows) == {exercise.id for exercise in EXERCISES if exercise.chapter == 5}
    assert "passed" in rows["5.1"]
    assert "not started" in rows["5.2"]
    assert "ch05.py:" in rows["5.2"]
    assert "not yet right" in rows["5.4"]
    assert "minillm hint 5.4" in rows["5.4"]
    assert "1 of 7 passed" in table


def test_an_accident_at_the_top_of_the_file_is_told_once(shell, tmp_path):
    path = write_solutions(tmp_path) / "ch05.py"
    path.write_text("import nothing_like_it\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    code, out = shell("pytest", "--ch", "5")
    assert code == 1, out
    assert out.count("No module named 'nothing_like_it'") == 1
    assert out.count("ch05.py, line 1: import nothing_like_it") == 1
    assert out.count("not yet, for the same reason as 5.1.") == 6
    table = out.partition("= your exercises =")[2]
    assert table.count("cannot be run") == table.count("mend the top of ") == 7
    assert "hint" not in table


def test_ch_passes_with_every_stub_filled_from_the_reference(shell, tmp_path):
    write_solutions(tmp_path)
    code, out = shell("pytest", "--ch=5")
    assert code == 0, out
    assert "7 of 7 passed" in out


def test_grade_is_the_same_from_any_directory(shell, tmp_path):
    write_solutions(tmp_path)
    code, out = shell("minillm.grade", "1", cwd=tmp_path)
    assert code == 0, out
    assert "4 of 4 passed" in out
    write_exercises(tmp_path)
    assert shell("minillm.grade", "1.2", cwd=tmp_path)[0] == 1


def test_grade_takes_several_exercises(shell, tmp_path):
    write_solutions(tmp_path)
    code, out = shell("minillm.grade", "5.3", "5.1", "1", "5.3")
    assert code == 0, out
    assert "6 of 6 passed" in out
    rows = [line.split()[0] for line in out.partition("= your exercises =")[2].splitlines() if line[1:2] == "."]
    assert rows == ["1.1", "1.2", "1.3", "1.4", "5.1", "5.3"]


def test_hints_come_one_by_one_the_last_stays_and_again_begins_again(shell):
    hints = find("5.2").hints
    for number in (1, 2, 3, 3):
        code, out = shell("pytest", "--hint", "5.2")
        assert code == 0, out
        assert out.startswith(f"5.2 Append to the cache, hint {number} of 3: {hints[number - 1]}")
    assert "--hint 5.2 --again" in out
    assert "hint 1 of 3" in shell("pytest", "--hint", "5.3")[1], "the hints of another exercise begin at the first"
    assert "hint 1 of 3" in shell("pytest", "--hint", "5.2", "--again")[1]
    assert "hint 2 of 3" in shell("pytest", "--hint", "5.2")[1]


def test_hints_are_counted_together_wherever_they_are_asked_for(shell, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    code, out, _ = call(capsys, "hint", "5.2")
    assert (code, out) == (0, f"5.2 Append to the cache, hint 1 of 3: {find('5.2').hints[0]}\n")
    assert "hint 2 of 3" in shell("pytest", "--hint", "5.2")[1]
    assert "hint 3 of 3" in shell("minillm.hint", "5.2", cwd=tmp_path)[1]
    hint("5.2")
    out = capsys.readouterr().out
    assert "hint 3 of 3" in out
    assert 'That was the last one. `hint("5.2", again=True)` begins again; read chapters/05' in out
    assert "`minillm hint 5.2 --again` begins again" in call(capsys, "hint", "5.2")[1]
    assert "hint 1 of 3" in call(capsys, "hint", "5.2", "--again")[1]
    assert (tmp_path / "kept" / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_a_hint_in_a_notebook_takes_a_number_and_answers_a_wrong_id_with_the_sentence_alone(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    hint(5.2)
    assert capsys.readouterr().out == f"5.2 Append to the cache, hint 1 of 3: {find('5.2').hints[0]}\n"
    hint("5.8")
    assert capsys.readouterr().out.startswith("there is no exercise '5.8': chapter 5 has 5.1, ")


@pytest.mark.parametrize("damaged", ["", "not json", "[3]", '{"5.2": "two"}', '{"5.2": -4}'])
def test_a_damaged_count_of_hints_begins_anew(tmp_path, monkeypatch, capsys, damaged):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    call(capsys, "hint", "5.2")
    (tmp_path / "kept" / "hints.json").write_text(damaged, encoding="utf-8")
    assert "hint 1 of 3" in call(capsys, "hint", "5.2")[1]
    assert "hint 2 of 3" in call(capsys, "hint", "5.2")[1]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--ch", "99"), "there are no exercises for chapter '99': there are some for chapters 1, "),
        (("--ch", "5.9"), "there is no exercise '5.9': chapter 5 has 5.1, 5.2, 5.3, 5.4, 5.5, 5.6, 5.7"),
        (("--hint", "5"), "there is no exercise '5': chapter 5 has 5.1, 5.2, 5.3, 5.4, 5.5, 5.6, 5.7"),
        (("--hint", "99.1"), "there is no exercise '99.1': there are some for chapters 1, "),
        (("--hint",), "--hint wants an exercise: pytest --hint 5.2"),
        (("--again",), "--again goes with --hint"),
        (
            ("--ch", "5", "tests/test_config.py"),
            "--ch 5 grades the exercises and runs no other tests: leave out tests/",
        ),
    ],
)
def test_wrong_flags_are_refused_in_one_sentence(shell, flags, told):
    code, out = shell("pytest", *flags)
    assert code == 4
    assert out.startswith(f"ERROR: {told}")
    assert "Traceback" not in out


def test_exercises_lists_every_one_with_its_state(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    write_exercises(tmp_path, e1_3=reference_source(find("1.3")), e1_4="def decode_ceiling(a, b, c=0.0):\n    return a")
    code, out, _ = call(capsys, "exercises")
    assert code == 0
    states = {line.split()[0]: line for line in out.splitlines() if line[:1].isdigit() and "." in line.split()[0]}
    assert set(states) == {exercise.id for exercise in EXERCISES}
    assert "passed" in states["1.3"]
    assert "not yet right" in states["1.4"]
    assert "not started" in states["5.1"]
    assert f"1 of {len(EXERCISES)} passed" in out


def test_exercises_of_a_directory_that_is_not_there_have_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path / "elsewhere"))
    code, out, _ = call(capsys, "exercises")
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("5.1"))
    assert "no file" in row
    assert "minillm exercises reset 5" in row
    assert call(capsys, "exercises", "reset", "5")[0] == 0
    assert (tmp_path / "elsewhere" / "ch05.py").is_file()


def test_reset_on_the_command_line_says_where_the_reader_s_version_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    write_solutions(tmp_path)
    code, out, _ = call(capsys, "exercises", "reset", "5.1")
    assert code == 0
    assert str(tmp_path / "kept" / "ch05_5.1_1.py") in out


def test_reset_takes_several_exercises_and_refuses_all_if_one_is_unknown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    path = write_solutions(tmp_path) / "ch05.py"
    before = path.read_text(encoding="utf-8")
    code, out, err = call(capsys, "exercises", "reset", "5.1", "5.9")
    assert (code, out) == (2, "")
    assert "there is no exercise '5.9'" in err
    assert path.read_text(encoding="utf-8") == before
    code, out, _ = call(capsys, "exercises", "reset", "5.1", "5.3")
    assert code == 0
    assert out.startswith("5.1 is a stub again")
    assert "\n5.3 is a stub again" in out
    assert not reader_files.is_started(find("5.1"))
    assert not reader_files.is_started(find("5.3"))
    assert reader_files.is_started(find("5.2"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("grade", "99"), "there are no exercises for chapter '99'"),
        (("grade",), "required: CHAPTER"),
        (("grade", "5.3", "5.8"), "there is no exercise '5.8'"),
        (("hint", "9.9"), "there is no exercise '9.9'"),
        (("exercises", "reset", "9.9"), "there is no exercise '9.9'"),
        (("exercises", "reset", "99"), "there are no exercises for chapter '99'"),
        (("exercises", "undo"), "invalid choice: 'undo'"),
    ],
)
def test_wrong_arguments_are_answered_in_one_sentence(args, told, capsys):
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.strip().splitlines()) == 1


def test_without_the_repository_s_tests_grading_says_where_to_get_them(monkeypatch, capsys):
    monkeypatch.setattr("minillm.exercises.checkout.ROOT", Path("/nowhere"))
    code, _, err = call(capsys, "grade", "5")
    assert code == 2
    assert "clone the repository" in err


def test_the_checkout_is_this_repository():
    assert checkout() == ROOT


def test_listing_and_hints_need_no_torch(tmp_path):
    write_exercises(tmp_path)
    code = (
        "import sys; from minillm import exercises, hint; exercises.main([]); hint.main(['5.1']);"
        " sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "MINILLM_EXERCISES": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, "`minillm exercises` on untouched stubs imports torch"
