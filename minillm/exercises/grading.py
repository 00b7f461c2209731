"""Grading: a function is run on cases, what can be seen afterwards is compared with what an oracle says.

A grader is data: cases, known wrong answers ("mutants") and other right ones. They live in the repository's tests,
under tests/graders/. When an answer is wrong, the mutants are run on the same cases: one that goes wrong in the same
way tells the likely cause.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minillm.exercises import NotStarted
from minillm.exercises.calling import wrong_parameters
from minillm.exercises.compare import difference, distance
from minillm.exercises.defaults import torch_defaults_kept
from minillm.exercises.exercise import Exercise
from minillm.exercises.reader_files import lines_of, own_line
from minillm.exercises.time_limit import CASE_LIMIT_S, OutOfTimeError, call_with_limit
from minillm.exercises.verdict import Verdict, failed

Function = Callable[..., Any]
Observation = Mapping[str, Any]  # what can be seen after a run: {"the result": tensor, "k afterwards": "unchanged"}

EXCEPTION = "the exception"  # an observation's name for what a case of a refusal is to raise
UNEXPECTED = "the exception that nobody wants"  # beside it, for the reader only: a Raised, never compared


@dataclass(frozen=True)
class Case:
    """`observe(f)` runs f on fresh inputs and says what can be seen; `want()` is the oracle's account of the same.

    given: the inputs in words, for the reader.
    """

    given: str
    observe: Callable[[Function], Observation]
    want: Callable[[], Observation]


@dataclass(frozen=True)
class Mutant:
    """A wrong answer that people give. `cause` says in one to three sentences what went wrong."""

    function: Function
    cause: str
    where: str = ""  # where to read; "" is the exercise's own place in its chapter
    begins: str = ""  # "InputError", say: its exceptions and the reader's need no more than begin so


@dataclass(frozen=True)
class Grader:
    """How one exercise is graded."""

    cases: Sequence[Case]
    mutants: Sequence[Mutant]
    alternatives: Sequence[Function]  # other right answers


@dataclass(frozen=True)
class Raised:
    """A run that ended in an exception. `line` is the reader's own: "file, line 3: source"."""

    message: str
    line: str = ""
    final: bool = False  # no use in running the other cases


def grade(exercise: Exercise, function: Any, grader: Grader | None = None, limit_s: float = CASE_LIMIT_S) -> Verdict:
    """Run `function` on the exercise's cases. Raises MissingError where the graders are not to be found."""
    from minillm.exercises.graders import grader_of

    grader = grader_of(exercise) if grader is None else grader
    if not callable(function):
        return failed(exercise, f"came    {function!r}, which is not a function")
    wants = [case.want() for case in grader.cases]  # first, so that what torch loads late counts into nobody's time
    outcomes = run_cases(grader, function, limit_s)
    for case, outcome, want in zip(grader.cases, outcomes, wants, strict=False):
        if _outcome_distance(outcome, want) > 1:
            is_type_error = isinstance(outcome, Raised) and outcome.message.startswith("TypeError")
            unfit = wrong_parameters(exercise, function) if is_type_error else ""
            mutant = Mutant(function, unfit) if unfit else _matching_mutant(grader, outcomes, wants)
            return _failure(exercise, case, outcome, want, mutant)
    return Verdict(exercise, True, f"{exercise.id} {exercise.title}: passed, {len(grader.cases)} cases.")


def run_cases(grader: Grader, function: Function, limit_s: float | None = None) -> list[Observation | Raised]:
    """What came of each case; it ends early where code is not written, or never ends. None: no limit."""
    outcomes: list[Observation | Raised] = []
    for case in grader.cases:
        outcomes.append(_run(case, function, limit_s))
        if isinstance(outcomes[-1], Raised) and outcomes[-1].final:
            break
    return outcomes


def worst_distance(grader: Grader, function: Function) -> float:
    """The largest distance from what is wanted, over all cases, in tolerances: the evidence for the tolerance."""
    outcomes = run_cases(grader, function)
    return max(_outcome_distance(o, case.want()) for o, case in zip(outcomes, grader.cases, strict=False))


def _run(case: Case, function: Function, limit_s: float | None) -> Observation | Raised:
    try:
        if limit_s is None:
            return case.observe(function)
        with torch_defaults_kept():
            return call_with_limit(lambda: case.observe(function), limit_s)
    except OutOfTimeError as error:
        return Raised(str(error), _line(error.lines, function), final=True)
    except NotStarted as error:
        return Raised(str(error), _line(lines_of(error), function), final=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also `exit()`: whatever a reader's code does, it is this exercise's affair
        return raised(error, function)


def raised(error: BaseException, function: Function) -> Raised:
    """An exception that came out of `function`: its name and message, and the reader's own line."""
    return Raised(f"{type(error).__name__}: {error}".rstrip(": "), _line(lines_of(error), function))


def _line(lines: list[tuple[str, int]], function: Function) -> str:
    code = getattr(function, "__code__", None)
    return own_line(lines, code.co_filename) if code else ""


def _outcome_distance(outcome: Observation | Raised, want: Observation | Raised) -> float:
    """The largest distance over everything that was observed."""
    if isinstance(outcome, Raised) or isinstance(want, Raised):
        alike = isinstance(outcome, Raised) and isinstance(want, Raised) and outcome.message == want.message
        return 0.0 if alike else math.inf
    return max(distance(outcome[name], want[name]) for name in want if name != UNEXPECTED)


def _matching_mutant(
    grader: Grader, outcomes: Sequence[Observation | Raised], wants: Sequence[Observation]
) -> Mutant | None:
    """The mutant that goes wrong as the reader's code does: in every case, or else in the first that is wrong.

    The first wrong case alone is weaker evidence (the code may be wrong in two ways), so the mutant that shares
    most of the wrong cases is taken.
    """
    wrong = [i for i, (o, want) in enumerate(zip(outcomes, wants, strict=False)) if _outcome_distance(o, want) > 1]
    best, most = None, 0.0
    for mutant in grader.mutants:
        first = _run(grader.cases[wrong[0]], mutant.function, None)
        if not _alike(outcomes[wrong[0]], first, mutant.begins):
            continue  # before its other cases are run: most mutants end here
        theirs = run_cases(grader, mutant.function)
        shared = [i for i, pair in enumerate(zip(outcomes, theirs, strict=False)) if _alike(*pair, mutant.begins)]
        score = math.inf if len(shared) == len(outcomes) == len(theirs) else len(set(shared) & set(wrong))
        if score > most:
            best, most = mutant, score
    return best


def _alike(own: Observation | Raised, theirs: Observation | Raised, begins: str) -> bool:
    """Whether the reader's code did in a case what a mutant does; of exceptions, `begins` alike is alike enough."""
    messages = [one.message for one in (own, theirs) if isinstance(one, Raised)]
    if begins and len(messages) == 2 and all(message.startswith(begins) for message in messages):
        return True
    return _outcome_distance(own, theirs) <= 1


def _failure(
    exercise: Exercise, case: Case, outcome: Observation | Raised, want: Observation, mutant: Mutant | None
) -> Verdict:
    """Given, wanted, came, likely cause, where to read."""
    lines = [("given", case.given)]
    if isinstance(outcome, Raised):
        name = next(iter(want))
        calm = "" if name == EXCEPTION else "no exception, and "
        lines += [("wanted", f"{calm}{name}: {difference(None, want[name])[0]}"), ("came", outcome.message)]
        if outcome.line:
            lines.append(("line", outcome.line))
    else:
        name = max(want, key=lambda key: distance(outcome[key], want[key]) > 1)  # the first that is off
        wanted, came = difference(outcome[name], want[name])
        unexpected = outcome.get(UNEXPECTED) if name == EXCEPTION else None
        lines += [("wanted", f"{name}: {wanted}"), ("came", unexpected.message if unexpected else came)]
        if unexpected and unexpected.line:
            lines.append(("line", unexpected.line))
    if mutant:
        lines.append(("likely", mutant.cause))
    lines.append(("read", (mutant and mutant.where) or exercise.where))
    return failed(exercise, *(f"{label:<8}{text}" for label, text in lines), cause=mutant.cause if mutant else "")
