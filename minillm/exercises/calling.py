"""An answer that cannot be called as its exercise calls it: one parameter too few or too many, a bound method."""

import inspect
from collections.abc import Callable
from typing import Any

from minillm.exercises.binding import reference
from minillm.exercises.exercise import Exercise


def wrong_parameters(exercise: Exercise, function: Callable[..., Any]) -> str:
    """In a sentence or two, what is wrong with the function's parameters; "" if it can be called, or nobody knows."""
    wanted = _without_types(reference(exercise))
    try:
        own = _without_types(function)
    except (TypeError, ValueError):  # a function that does not say what it takes
        return ""
    try:
        own.bind(*wanted.parameters)
    except TypeError:
        told = f"It is called with {wanted}, and yours takes {own}."
    else:
        return ""
    if inspect.ismethod(function):
        return f"{told} It is bound to an object already: give the function itself, {function.__qualname__}."
    if "self" in wanted.parameters and "self" not in own.parameters:
        owner = exercise.qualname.split(".")[0]
        return f"{told} It is a method of {owner}: its first parameter, self, is the object whose method it is."
    return told


def _without_types(function: Callable[..., Any]) -> inspect.Signature:
    """The signature as names and defaults alone, which is short enough for a sentence."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
