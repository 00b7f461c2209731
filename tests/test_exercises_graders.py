"""The graders are graded: right answers pass, every known wrong one fails with its own cause, stubs fail."""

import ast
from pathlib import Path

import pytest
import torch
from exercise_files import reference_source, write_exercises
from graders.common import formula

from minillm.errors import InputError
from minillm.exercises import NotStarted, check, reader_files
from minillm.exercises.binding import reference
from minillm.exercises.compare import difference, distance
from minillm.exercises.graders import grader_of
from minillm.exercises.grading import Grader, Mutant, grade, worst_distance
from minillm.exercises.manifest import EXERCISES, find, select

each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


def _numbered(kind):
    """One parameter for each mutant (or alternative) of each exercise."""
    return [
        pytest.param(exercise, answer, id=f"{exercise.id}-{number}")
        for exercise in EXERCISES
        for number, answer in enumerate(getattr(grader_of(exercise), kind))
    ]


@each_exercise
def test_the_reference_passes_within_a_tenth_of_the_tolerance(exercise):
    grader = grader_of(exercise)
    verdict = grade(exercise, reference(exercise), grader)
    assert verdict.passed, verdict.text
    assert worst_distance(grader, reference(exercise)) <= 0.1, "the tolerance is too tight for the right answer"


@pytest.mark.parametrize(("exercise", "function"), _numbered("alternatives"))
def test_another_right_answer_passes_within_a_tenth_of_the_tolerance(exercise, function):
    grader = grader_of(exercise)
    verdict = grade(exercise, function, grader)
    assert verdict.passed, verdict.text
    assert worst_distance(grader, function) <= 0.1, "the tolerance is too tight for a right answer"


@pytest.mark.parametrize(("exercise", "mutant"), _numbered("mutants"))
def test_a_known_wrong_answer_fails_with_its_own_cause(exercise, mutant):
    grader = grader_of(exercise)
    verdict = grade(exercise, mutant.function, grader)
    assert not verdict.passed, f"this wrong answer passes: {mutant.cause}"
    assert verdict.cause == mutant.cause, f"taken for another mistake:\n{verdict.text}"
    assert mutant.cause in verdict.text
    assert worst_distance(grader, mutant.function) > 100, "the tolerance is so wide that this one nearly passes"


@each_exercise
def test_each_exercise_has_enough_to_be_graded_by(exercise):
    grader = grader_of(exercise)
    assert len(grader.mutants) >= 3, "too few known wrong answers"
    assert len({mutant.cause for mutant in grader.mutants}) == len(grader.mutants), "two mutants share one cause"
    assert len(grader.alternatives) >= 1, "no other right answer is tried"
    assert len(grader.cases) >= 3, "too few cases"
    assert len(exercise.hints) >= 2, "a nudge and nearly the answer: at least two hints"
    assert all(hint.strip() for hint in exercise.hints), "an empty hint"


@each_exercise
def test_a_stub_has_the_signature_of_its_reference(exercise):
    stub = _function(reader_files.cut(reader_files.pristine(exercise.file_name))[1][exercise.id].text)
    own = _function(reference_source(exercise))
    assert stub.name == exercise.name
    assert ast.unparse(stub.args) == ast.unparse(own.args)
    assert ast.unparse(stub.returns) == ast.unparse(own.returns)
    assert len(ast.get_docstring(stub)) > 100, "a stub's docstring says the task, the shapes and a line budget"
    assert "line" in ast.get_docstring(stub).split("\n\n")[-1], "the line budget is the docstring's last paragraph"


def _function(source):
    return next(node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))


@each_exercise
def test_a_stub_that_is_called_says_that_it_is_not_started_and_fails(exercise, monkeypatch, tmp_path):
    (tmp_path / exercise.file_name).write_text(reader_files.pristine(exercise.file_name), encoding="utf-8")
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path))
    assert not reader_files.is_started(exercise)
    stub = reader_files.load(exercise)
    parameters = [None] * stub.__code__.co_argcount
    with pytest.raises(NotStarted, match=exercise.id.replace(".", r"\.")):
        stub(*parameters)
    verdict = grade(exercise, stub)
    assert not verdict.passed
    assert "not started" in verdict.text


def test_ids_are_unique_and_sorted_and_every_grader_belongs_to_one():
    ids = [exercise.id for exercise in EXERCISES]
    assert ids == sorted(set(ids), key=lambda one: tuple(map(int, one.split("."))))
    assert [e.id for e in select("5")] == [one for one in ids if one.startswith("5.")]
    assert select("5.2") == (find("5.2"),)


ATTENTION, FORMULA = find("5.3"), find("1.2")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda q, k, v: None, "None (is there a `return`?)"),
        (lambda q, k, v: (q, k), "a tuple"),
        (lambda q, k, v: q.tolist(), "a list"),
        (lambda q, k, v: q.numpy(), "a ndarray"),
        (lambda q, k, v: q.squeeze(2), "shape [3, 8, 6] instead of [3, 8, 1, 6]"),
        (lambda q, k, v: q / 0, "inf"),
        (lambda q, k: q, "TypeError"),
    ],
)
def test_an_answer_of_the_wrong_kind_is_named(answer, told):
    verdict = grade(ATTENTION, answer)
    assert not verdict.passed
    assert told in verdict.text


class _Cache:
    def append(self, layer, k, v):
        return k, v


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda layer, k, v: (k, v), "yours takes (layer, k, v). It is a method of KVCache: its first parameter"),
        (_Cache().append, "bound to an object already: give the function itself, _Cache.append"),
        (lambda self, layer, k: k, "It is called with (self, layer, k, v), and yours takes (self, layer, k)."),
    ],
)
def test_an_answer_that_cannot_be_called_is_told_how_it_is_called(answer, told):
    verdict = grade(find("5.2"), answer)
    assert told in verdict.text
    assert verdict.text.count("likely") == 1


def test_a_type_error_inside_an_answer_is_not_taken_for_one_of_its_parameters():
    assert grade(find("5.2"), lambda self, layer, k, v: len(layer)).cause == ""


def test_something_that_is_no_function_is_a_failure_and_not_an_accident():
    assert "not a function" in grade(ATTENTION, 3).text


def test_an_answer_that_writes_into_what_it_was_given_fails_even_if_the_result_is_right():
    def attention(q, k, v):
        result = reference(ATTENTION)(q, k, v)
        v.zero_()
        return result

    assert "v written into" in grade(ATTENTION, attention).text


def test_every_run_of_a_formula_gets_arguments_of_its_own():
    given = [[0.9, 1.1, 1.4]]
    case = formula("a list", given, 3)
    for _ in range(2):
        seen = case.observe(lambda t: [len(t), t.clear()][0])
        assert seen["the result"] == 3, "a run finds what an earlier one left of the list"
        assert seen["the arguments afterwards"] != case.want()["the arguments afterwards"]
    assert given == [[0.9, 1.1, 1.4]]


@each_exercise
def test_the_reference_passes_whatever_torch_s_default_dtype_is(exercise):
    torch.set_default_dtype(torch.float64)
    try:
        verdict = grade(exercise, reference(exercise))
    finally:
        torch.set_default_dtype(torch.float32)
    assert verdict.passed, verdict.text


def test_a_failure_says_what_was_given_wanted_and_came_the_cause_and_where_to_read():
    text = grade(FORMULA, lambda ttft_s, tpot_s, completion_tokens: ttft_s + completion_tokens * tpot_s).text
    assert "given   ttft_s = 0.5, tpot_s = 0.1, completion_tokens = 3" in text
    assert "wanted  the result: 0.7" in text
    assert "came    0.8" in text
    assert "likely  One TPOT too many" in text
    assert "read    chapters/01-the-journey.md#the-arithmetic" in text


def _append_with(refuse):
    """A right `append`, but for what it does where the tokens do not fit."""

    def append(self, layer, k, v):
        if self.length + k.shape[2] > self.max_seq_len:
            return refuse()
        return reference(find("5.2"))(self, layer, k, v)

    return append


def test_another_exception_than_the_wanted_one_is_told_with_its_message_and_line():
    def refuse():
        raise InputErrr("no room")  # noqa: F821 - the reader's mistake

    text = grade(find("5.2"), _append_with(refuse)).text
    assert "wanted  the exception: InputError with a sentence" in text
    assert "came    NameError: name 'InputErrr' is not defined" in text
    assert 'raise InputErrr("no room")' in text
    assert "likely" not in text, "a name that nobody has misspelt before gets no made-up cause"


@pytest.mark.parametrize(
    ("refuse", "told"),
    [
        (lambda: InputError("no such length"), "You return the exception"),
        (lambda: print("no such length"), "You leave the cache as it is, and nobody hears of it"),
        (lambda: ValueError("no such length"), "You return the exception"),
    ],
)
def test_a_refusal_that_is_none_is_not_taken_for_another(refuse, told):
    def truncate(self, length):
        if not 0 <= length <= self.length:
            return refuse()
        self._length = length
        return None

    text = grade(find("5.6"), truncate).text
    assert told in text
    assert "nearest" not in text, "nothing was clipped"


def test_an_input_error_that_is_not_imported_is_told_how_to_import_it():
    def refuse():
        raise NameError("name 'InputError' is not defined")

    assert "from minillm.errors import InputError" in grade(find("5.2"), _append_with(refuse)).text


def test_a_mistake_that_nobody_has_made_before_gets_no_made_up_cause():
    verdict = grade(FORMULA, lambda ttft_s, tpot_s, completion_tokens: 123.0)
    assert not verdict.passed
    assert "likely" not in verdict.text


def test_a_mutant_that_fits_every_case_is_preferred_to_one_that_fits_the_first():
    cases = [formula("1", [1], 1), formula("2", [2], 2)]
    mutants = [Mutant(lambda x: 3 - x if x == 2 else 5, "first only"), Mutant(lambda x: 5, "both")]
    assert grade(FORMULA, lambda x: 5, Grader(cases, mutants, ())).cause == "both"


def test_exceptions_match_a_mutant_that_raises_the_same():
    cases = [formula("0", [0], 1)]
    mutants = [Mutant(lambda x: x[0], "an index"), Mutant(lambda x: 1 / x, "a division")]
    assert grade(FORMULA, lambda x: 2 / x, Grader(cases, mutants, ())).cause == "a division"


def test_exceptions_match_a_mutant_as_far_as_it_says_that_theirs_begin():
    cases = [formula("0", [0], 1)]
    mutants = [Mutant(lambda x: x.real_part, "a field", begins="AttributeError: 'int' object")]
    assert grade(FORMULA, lambda x: x.imaginary_part, Grader(cases, mutants, ())).cause == "a field"
    assert grade(FORMULA, lambda x: "".imaginary_part, Grader(cases, mutants, ())).cause == ""


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        (lambda length, held: 0 <= length < held, "You refuse the length that the cache has."),
        (lambda length, held: length < held, "You ask for length < self.length."),
        (lambda length, held: 0 < length <= held, "You refuse 0."),
    ],
)
def test_an_input_error_in_other_words_is_the_same_mistake(allowed, told):
    def truncate(self, length):
        if not allowed(length, self.length):
            raise InputError(f"a cache of {self.length} tokens cannot be truncated to {length}")
        self._length = length

    assert grade(find("5.6"), truncate).cause.startswith(told)


def test_what_is_compared_before_tokens_are_appended_does_not_speak_of_them():
    def erasing(self, length):
        self.keys[:, :, :, length:] = 0
        self._length = length

    text = grade(find("5.6"), erasing).text
    assert "given   a cache that holds 5 of 7 tokens; length = 3\n" in text
    assert "wanted  cache.keys: " in text


def _groups_as_rows(q, k, v):
    rows = q.view(q.shape[0], k.shape[1], -1, q.shape[3])
    return ((rows @ k / q.shape[3] ** 0.5).softmax(-1) @ v).view(q.shape)


@pytest.mark.parametrize(
    ("exercise_id", "answer", "told"),
    [
        ("5.1", lambda config, dtype: 2 * config.n_layer * config.n_kv_head, "minillm/config.py lists all"),
        ("5.1", lambda config, dtype: 2 * config.layers, "minillm/config.py lists all"),
        ("5.3", _groups_as_rows, "k is not transposed"),
        ("5.3", lambda q, k, v: (q / math.sqrt(6)) @ k.mT, "math is not imported"),  # noqa: F821
    ],
)
def test_a_common_exception_is_explained(exercise_id, answer, told):
    text = grade(find(exercise_id), answer).text
    assert told in text.partition("likely")[2], text


def test_nan_is_far_from_every_number_and_a_float_is_no_whole_number():
    assert distance(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])) > 100
    assert distance(float("nan"), 1.0) > 100
    assert distance(2.0, 2) > 100
    assert distance(True, 1) > 100
    assert distance(2, 2.0) == 0
    assert "whole number" in difference(2.0, 2)[1]
    assert ".item()" in difference(torch.tensor(2.0), 2.0)[1]


def test_check_prints_the_verdict_and_returns_it(capsys):
    assert check("5.1", _own_copy(find("5.1"))) is True
    assert "5.1 Bytes of cache per token: passed" in capsys.readouterr().out
    assert check("5.1", lambda config, dtype: 1) is False
    assert "wanted  the result: 23040" in capsys.readouterr().out


def _own_copy(exercise):
    """A right answer of the reader's, defined in this very file."""
    return lambda *arguments: reference(exercise)(*arguments)


@each_exercise
def test_check_refuses_the_engine_s_own_function(exercise, capsys):
    assert check(exercise.id, reference(exercise)) is False, "it would pass as the reader's"
    told, (home, qualname) = capsys.readouterr().out, exercise.reference.split(":")
    assert f"the engine's own {qualname}, imported from {home}: give yours" in told


@pytest.mark.parametrize("home", ["__main__", "minillm.exercises.ch05", "minillm_of_mine"])
def test_check_takes_a_function_of_a_notebook_or_of_the_reader_s_file(home):
    own = _own_copy(find("5.4"))
    own.__module__ = home
    assert check("5.4", own) is True


def test_check_says_where_an_answer_of_a_cell_goes_until_it_is_there(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MINILLM_EXERCISES", str(tmp_path / "exercises"))
    own = _own_copy(find("5.1"))
    check("5.1", own)
    assert "minillm exercises reset 5" in capsys.readouterr().out
    (tmp_path / "exercises").mkdir()
    path = write_exercises(tmp_path / "exercises") / "ch05.py"
    check("5.1", own)
    line = path.read_text(encoding="utf-8").splitlines().index(next(_markers(path, "5.1"))) + 1
    assert f"Now put it into {path}, from line {line}: there --mine and the progress table" in capsys.readouterr().out
    check("5.1", lambda config, dtype: 1)
    assert "Now put it" not in capsys.readouterr().out
    write_exercises(tmp_path / "exercises", e5_1=reference_source(find("5.1")))
    check("5.1", own)
    assert "Now put it" not in capsys.readouterr().out


def _markers(path, exercise_id):
    return (line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(f"# --- {exercise_id}"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((None, len), r'"5\.1" with its quotes, and not None'),
        ((5.9, len), r"no exercise '5\.9': chapter 5 has 5\.1, "),
        ((len, "5.1"), r'swapped: check\("5\.1", my_function\)'),
        (("5", len), r"no exercise '5': chapter 5 has 5\.1, 5\.2, .*5\.7$"),
    ],
)
def test_check_with_wrong_arguments_says_how_it_is_called(arguments, told):
    with pytest.raises(InputError, match=told):
        check(*arguments)


def test_check_takes_the_id_as_a_number_too(capsys):
    assert check(5.1, _own_copy(find("5.1"))) is True
    assert "5.1 Bytes of cache per token: passed" in capsys.readouterr().out


def test_check_without_a_function_reads_the_reader_s_file_afresh(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MINILLM_EXERCISES", str(write_exercises(tmp_path)))
    assert check("1.3") is False
    assert "not started" in capsys.readouterr().out
    write_exercises(tmp_path, e1_3=reference_source(find("1.3")))
    assert check("1.3") is True


@each_exercise
def test_the_chapter_sets_the_exercise_under_the_name_and_the_label_that_a_failure_points_to(exercise):
    chapter = (Path(__file__).parents[1] / exercise.chapter_path).read_text(encoding="utf-8")
    assert f"```{{exercise}} {exercise.title}\n:label: {exercise.anchor}\n" in chapter


@each_exercise
def test_a_failure_sends_the_reader_to_a_section_that_is_there(exercise):
    chapter = (Path(__file__).parents[1] / exercise.chapter_path).read_text(encoding="utf-8")
    headings = [line.lstrip("#").strip().lower() for line in chapter.splitlines() if line.startswith("##")]
    anchors = ["".join(c for c in heading if c.isalnum() or c in " -").replace(" ", "-") for heading in headings]
    assert exercise.where.split("#")[1] in [*anchors, exercise.anchor]
