"""When an answer calls the reader's answer to another exercise: whose mistake is it?

5.5 may call the reader's 5.4. Where that one is wrong, a right 5.5 fails with it, and would be told a story of its own.
Where it is a stub still, 5.5 cannot be graded at all.
So a failure is looked at twice: the second time with the engine's functions in the place of the reader's other ones.
"""

import dis
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any

from minillm.exercises.binding import reference
from minillm.exercises.exercise import Exercise
from minillm.exercises.grading import grade
from minillm.exercises.manifest import EXERCISES
from minillm.exercises.verdict import Verdict, failed

Function = Callable[..., Any]

_STUB = "is not started"


def grade_apart(exercise: Exercise, function: Function, why_missing: Mapping[str, str], limit_s: float) -> Verdict:
    """The grade of `function`; where it fails by the fault of another exercise's answer, that is what is said.

    why_missing: by exercise id, why an answer is not there to be called ("it does not compile").
    """
    verdict = grade(exercise, function, limit_s=limit_s)
    if verdict.passed:
        return verdict
    wrong = {other: why for other in _called(exercise, function) if (why := _fault(other, function, why_missing))}
    if not wrong:
        return verdict
    with _engines_instead(wrong, function):
        alone = grade(exercise, function, limit_s=limit_s)
    faults = "; ".join(f"your {other.id} ({other.name}), which it calls, {why}" for other, why in wrong.items())
    if alone.passed:
        ids = tuple(other.id for other in wrong)
        return failed(exercise, _waits(ids, faults, set(wrong.values()) <= {_STUB}), waits_for=ids)
    return failed(
        exercise, *alone.text.splitlines()[1:], f"also    {faults}: here the engine's own stood in.", cause=alone.cause
    )


def _waits(ids: tuple[str, ...], faults: str, stubs: bool) -> str:
    """What to do about a right answer that calls others which are not; `stubs`: nobody has begun with any of those."""
    them = "it" if len(ids) == 1 else "them"
    first = f"{'Finish' if stubs else 'Mend'} {' and '.join(ids)} first, and grade this one again"
    begin = f"It waits for {' and '.join(ids)}: {faults}." if stubs else f"It would pass, but {faults}."
    return f"{begin} {first}: with the engine's own in the place of {them}, it passes."


def _fault(other: Exercise, function: Function, why_missing: Mapping[str, str]) -> str:
    """What is wrong with the answer that stands under the other exercise's name; "" if nothing is."""
    if other.id in why_missing:
        return why_missing[other.id]
    if other.name not in function.__globals__:
        return "is not defined"
    theirs = function.__globals__[other.name]
    if not callable(theirs) or theirs is reference(other):
        return ""
    verdict = grade(other, theirs)
    if f"exercise {other.id} is not started" in verdict.text:
        return _STUB
    # Where it calls a stub itself, that stub is at fault, and this function calls it too.
    return "" if verdict.passed or "is not started" in verdict.text else "is not right yet"


def _called(exercise: Exercise, function: Function) -> list[Exercise]:
    """The other exercises of the chapter that the function reaches by name, by way of helpers too."""
    namespace = getattr(function, "__globals__", {})
    names: set[str] = set()
    waiting = [getattr(function, "__code__", None)]
    while waiting:
        code = waiting.pop()
        for name in set(_globals_in(code)) - names if code else ():
            names.add(name)
            waiting.append(getattr(namespace.get(name), "__code__", None))
    return [e for e in EXERCISES if e.chapter == exercise.chapter and e is not exercise and e.name in names]


def _globals_in(code: CodeType) -> Iterator[str]:
    """The global names that a function's code looks up, and those of the functions within it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
        elif isinstance(instruction.argval, CodeType):
            yield from _globals_in(instruction.argval)


@contextmanager
def _engines_instead(others: Mapping[Exercise, str], function: Function) -> Iterator[None]:
    """Within, the names of other exercises stand for the engine's functions, where `function` looks them up."""
    namespace = function.__globals__
    before = {other.name: namespace[other.name] for other in others if other.name in namespace}
    try:
        namespace.update({other.name: reference(other) for other in others})
        yield
    finally:
        for other in others:
            namespace.pop(other.name, None)
        namespace.update(before)
