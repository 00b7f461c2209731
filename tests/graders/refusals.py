"""How a refusal goes wrong, whatever is refused: another class, no sentence, an exception that is not raised."""

from collections.abc import Callable
from typing import Any

from minillm.errors import InputError
from minillm.exercises.grading import Function, Mutant

_OtherInputError = type("InputError", (Exception,), {})


def refusals(answer: Callable[[Callable[[], Any]], Function]) -> list[Mutant]:
    """Mutants of an exercise that asks for an InputError; `answer(refuse)` is right, but that it refuses by `refuse`.

    What it does where nothing is to be refused must be right: the causes speak of the refusal alone.
    """
    return [
        Mutant(
            answer(lambda: _raise(_OtherInputError("no"))),
            "You raise a class of your own that happens to be called InputError. Who calls this catches the engine's:"
            " it is imported at the top of the file, from minillm.errors.",
        ),
        Mutant(
            answer(lambda: _raise(NameError("name 'InputError' is not defined"))),
            "InputError is not known where your function is. Say `from minillm.errors import InputError` at the top of"
            " the file, or in a cell of the notebook that you run first.",
        ),
        Mutant(
            answer(lambda: InputError("no")),
            "You return the exception, so that nobody is stopped: the caller goes on with an object that it does not"
            " look at. Raise it: raise InputError(...).",
        ),
        *(
            Mutant(answer(lambda error=error: _raise(error("no"))), _another_class(error))
            for error in (ValueError, Exception, RuntimeError, IndexError)
        ),
        Mutant(
            answer(lambda: _raise(InputError())),
            "You raise InputError without a word. Whoever meets it sees an empty line: say in a sentence what cannot"
            " be, and why.",
        ),
    ]


def _another_class(error: type[Exception]) -> str:
    return (
        f"You raise {error.__name__}. The engine's callers catch InputError, and make one sentence for the user of it:"
        " `from minillm.errors import InputError`, and raise that."
    )


def _raise(error: Exception) -> Any:
    raise error
