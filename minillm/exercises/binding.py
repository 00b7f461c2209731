"""The engine on a reader's functions: each takes its reference's place wherever the engine reaches it.

A function may be known under its name in other modules too (`from minillm.attention import causal_attention`), so
every loaded minillm module is looked through. A module that is imported later takes what the home module then has.
Where one of the reader's functions calls another, that call is counted too. What a reader's function raises is
told as its own accident, with the line: see `own_failure.py`.
"""

import functools
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from minillm.exercises.exercise import Exercise
from minillm.exercises.manifest import find
from minillm.exercises.own_failure import OwnCodeError, own_code_error

Function = Callable[..., Any]


def reference(exercise: Exercise) -> Function:
    """The engine's own function."""
    owner, name = _home(exercise)
    return inspect.getattr_static(owner, name)


@contextmanager
def bind(functions: Mapping[str, Function]) -> Iterator[Counter[str]]:
    """Put functions (by exercise id) in the place of their references; afterwards everything is as it was.

    Yields how often each was called so far, by exercise id. Within, whatever one of them raises arrives as an
    OwnCodeError (an InputError) that names it; Ctrl-C stays what it is.
    """
    calls: Counter[str] = Counter()
    with ExitStack() as undo:
        for exercise_id, function in functions.items():
            exercise = find(exercise_id)
            original, counted = reference(exercise), _watched(function, exercise, calls)
            undo.callback(_replace, exercise, counted, original)
            _replace(exercise, original, counted)
            for names in [getattr(each, "__globals__", {}) for each in functions.values()]:
                undo.callback(_rename, names, counted, function)
                _rename(names, function, counted)
        yield calls


def _home(exercise: Exercise) -> tuple[Any, str]:
    """The module or class that owns the reference, and its name there."""
    module_name, qualname = exercise.reference.split(":")
    *classes, name = qualname.split(".")
    return functools.reduce(getattr, classes, importlib.import_module(module_name)), name


def _replace(exercise: Exercise, old: Function, new: Function) -> None:
    owner, name = _home(exercise)
    setattr(owner, name, new)
    for module in _engine_modules():
        _rename(vars(module), old, new)


def _rename(names: dict[str, Any], old: Function, new: Function) -> None:
    """Whatever name stands for `old` in a module's names, it stands for `new` from here on."""
    for name, value in list(names.items()):
        if value is old:
            names[name] = new


def _engine_modules() -> list[ModuleType]:
    """All loaded modules of the engine: not the exercises, whose own imports of the reference stay."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("minillm.") and not name.startswith("minillm.exercises") and isinstance(module, ModuleType)
    ]


def _watched(function: Function, exercise: Exercise, calls: Counter[str]) -> Function:
    """The function, counting its calls, its accidents told in a sentence; also those of what it yields, later.

    Where a recursion has used up the stack, the sentence itself does not fit at first: the RecursionError of the
    attempt goes up, to a call that has the room.
    """

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        calls[exercise.id] += 1
        with _told(exercise, function):
            result = function(*args, **kwargs)
        return _watched_steps(result, exercise, function) if isinstance(result, Iterator) else result

    return watched


def _watched_steps(steps: Iterator[Any], exercise: Exercise, function: Function) -> Iterator[Any]:
    """The same steps. Nothing of a generator has run when its function returns: its accidents come as it is read."""
    with _told(exercise, function):
        yield from steps  # which also closes it where its reader closes this


@contextmanager
def _told(exercise: Exercise, function: Function) -> Iterator[None]:
    """Whatever is raised within is told as the function's own accident."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit, OwnCodeError):
        raise
    except BaseException as error:  # also `sys.exit(0)`, which would end the run as if all were well
        raise own_code_error(exercise, function, error) from error
