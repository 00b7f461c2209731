"""`--mine`: a run of the engine on the reader's own functions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from minillm.config import ModelConfig
from minillm.errors import InputError, MissingError, NumbersError
from minillm.exercises import reader_files
from minillm.exercises.binding import Function, bind
from minillm.exercises.exercise import Exercise
from minillm.exercises.manifest import EXERCISES, find
from minillm.exercises.progress import State, row_of, state_of

FINISHED = "finished"  # what `--mine` without ids stands for


@contextmanager
def running_on_mine(wanted: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """Within, the engine runs on the reader's functions; `say` hears which, and afterwards how often each was called.

    wanted: None for the engine's own functions; FINISHED for every exercise whose grader passes; or ids, "5.2,5.3".
    Raises InputError for an unknown id, or one whose code is not written or cannot be loaded; within, what a reader's
    function raises arrives as an OwnCodeError, an InputError that names it.
    """
    if wanted is None:
        yield
        return
    rows = [row_of(exercise) for exercise in EXERCISES] if wanted == FINISHED else []
    exercises = [row.exercise for row in rows if row.state is State.FINISHED] if rows else _chosen(wanted)
    functions = {exercise.id: _load(exercise) for exercise in exercises}
    if functions:
        say(f"running on your own code: {_listing(exercises)}")
    else:
        say(
            "--mine: none of your exercises is finished yet, so the engine runs on its own code;"
            " `minillm exercises` lists them"
        )
    if unfinished := [row.exercise for row in rows if row.state in (State.STARTED, State.UNUSABLE)]:
        say(f"not yet right, so the engine's own stand in for them: {_listing(unfinished)}")
    if waiting := [f"{_listing([row.exercise])} {row.standing}" for row in rows if row.state is State.WAITING]:
        say(f"right, but waiting for another of yours, so the engine's own stand in for them: {', '.join(waiting)}")
    try:
        with bind(functions) as calls:
            try:
                yield
            finally:
                _report(exercises, calls, say)
    except (InputError, MissingError, NumbersError, OSError):
        raise
    except Exception as error:  # in the engine, after a function of the reader's gave it something else than it asked
        wrong = [exercise.id for exercise in exercises if state_of(exercise) is not State.FINISHED]
        if not wrong:
            raise
        raise InputError(
            f"--mine: the engine broke on what your code gave it ({type(error).__name__}:"
            f" {' '.join(str(error).split())}). Your {' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not yet"
            f" right: `minillm grade {wrong[0]}` says why"
        ) from error


def check_exercises_fit(config: ModelConfig) -> None:
    """Raise InputError for a model that needs more than the exercises ask for: it would run, and say nonsense."""
    scaling = config.rope_scaling
    beyond = config.beyond_llama
    if scaling is not None and scaling.attention_factor != 1:
        beyond = (*beyond, "queries and keys scaled with their rotation")
    if beyond:
        raise InputError(
            f"--mine: the exercises write a plain Llama, and this model has {', '.join(beyond)}:"
            " take another model, or leave --mine out"
        )


def _chosen(wanted: str) -> list[Exercise]:
    """The exercises named, each once."""
    exercises = [find(exercise_id) for exercise_id in dict.fromkeys(map(str.strip, wanted.split(",")))]
    missing = [exercise.id for exercise in exercises if not reader_files.is_started(exercise)]
    if missing:
        raise InputError(
            f"--mine: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not started:"
            " leave the id out, or write the function first"
        )
    return exercises


def _load(exercise: Exercise) -> Function:
    try:
        return reader_files.load(exercise)
    except reader_files.UnusableCodeError as error:
        raise InputError(
            f"--mine: your {exercise.id} cannot be loaded: {' at '.join(str(error).splitlines())}"
        ) from None


def _report(exercises: Sequence[Exercise], calls: dict[str, int], say: Callable[[str], None]) -> None:
    """How often each function was called: the proof that it was the reader's code that ran."""
    called = [f"{e.id} {e.name} x {calls[e.id]}" for e in exercises if calls[e.id]]
    unused = [e for e in exercises if not calls[e.id]]
    if called:
        say(f"calls of your code: {', '.join(called)}")
    if unused:
        say(f"not called in this run: {'; '.join(_why(unused))}")


def _why(unused: Sequence[Exercise]) -> Iterator[str]:
    """Each with when it is called; and together, those that no request calls."""
    yield from (f"{_listing([exercise])} (called {exercise.called})" for exercise in unused if exercise.called)
    if never := [exercise for exercise in unused if not exercise.called]:
        yield f"{_listing(never)} (no part of a request)"


def _listing(exercises: Sequence[Exercise]) -> str:
    return ", ".join(f"{exercise.id} {exercise.name}" for exercise in exercises)
