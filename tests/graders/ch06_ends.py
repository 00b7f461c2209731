"""6.1 and 6.2: which token ids end a request, and for what reason it ends."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from graders.common import CHANGED, UNTOUCHED
from minillm.config import ModelConfig
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.sampler import SamplingParams

# --- 6.1 -------------------------------------------------------------------------------------------------------------


def _config(*eos_token_ids: int) -> ModelConfig:
    return ModelConfig(107, 48, 80, 3, 6, 2, 10, 96, bos_token_id=1, eos_token_ids=eos_token_ids)


def _ids(result: Any) -> Any:
    """A collection of ids in words, whatever its kind and order; anything else as it is."""
    if isinstance(result, set | frozenset | tuple | list | dict | type({}.keys())):
        return _in_words(result)
    return result


def _in_words(ids: Any) -> str:
    return " ".join(str(one) for one in sorted(set(ids), key=str)) or "no ids"


def _ids_case(eos: Sequence[int], stop: Sequence[int], ignore: bool, want: Sequence[int]) -> Case:
    given = f"config.eos_token_ids = {tuple(eos)}, params.stop_token_ids = {tuple(stop)}, ignore_eos = {ignore}"

    def observe(f: Function) -> Observation:
        params = SamplingParams(stop_token_ids=stop, ignore_eos=ignore)
        return {"the ids": _ids(f(params, _config(*eos)))}

    return Case(given, observe, lambda: {"the ids": _in_words(want)})


def _united(params: SamplingParams, config: ModelConfig) -> frozenset[int]:
    return frozenset(config.eos_token_ids) | frozenset(params.stop_token_ids)


ENDING_IDS = Grader(
    cases=[
        _ids_case([2, 0], [7, 30], False, [2, 0, 7, 30]),
        _ids_case([2, 0], [7, 30], True, [7, 30]),
        _ids_case([2, 0], [], False, [2, 0]),
        _ids_case([2, 0], [], True, []),
        _ids_case([], [7], False, [7]),
        _ids_case([5, 9], [5, 7], False, [5, 7, 9]),
        _ids_case([5, 9], [5, 7], True, [5, 7]),
    ],
    mutants=[
        Mutant(_united, "You do not look at ignore_eos: a request that asked to go on past the model's ids ends."),
        Mutant(
            lambda params, config: frozenset() if params.ignore_eos else _united(params, config),
            "With ignore_eos you drop everything. It is about the model's own ids; those in stop_token_ids were asked"
            " for by this very request, and still end it.",
        ),
        Mutant(
            lambda params, config: frozenset(params.stop_token_ids if params.ignore_eos else config.eos_token_ids),
            "You take one source or the other. Without ignore_eos both count: what the model ends with, and what the"
            " request asked for.",
        ),
        Mutant(
            lambda params, config: (
                frozenset(params.stop_token_ids)
                or (frozenset() if params.ignore_eos else frozenset(config.eos_token_ids))
            ),
            "You let stop_token_ids replace the model's ids. They come on top: whoever asks for one more way to end"
            " has not asked to be rid of the others.",
        ),
        Mutant(
            lambda params, config: (
                frozenset([] if params.ignore_eos else config.eos_token_ids[:1]) | frozenset(params.stop_token_ids)
            ),
            "You take only the first end-of-sequence id. A model may have several (one ends a text, another a turn of"
            " a chat), and goes on for ever where the one that it uses is missing.",
        ),
        Mutant(
            lambda params, config: (
                _united(params, config) - frozenset(config.eos_token_ids)
                if params.ignore_eos
                else _united(params, config)
            ),
            "You take the end-of-sequence ids out again, also one that stands in stop_token_ids. What was asked for by"
            " its id ends the request, ignore_eos or not: leave the model's ids out first, then add those.",
        ),
        Mutant(
            lambda params, config: (
                frozenset(config.eos_token_ids if params.ignore_eos else ()) | frozenset(params.stop_token_ids)
            ),
            "The switch is the wrong way round: with ignore_eos the model's ids do *not* end the request.",
        ),
        Mutant(
            lambda params, config: frozenset() if params.ignore_eos else frozenset(config.eos_token_ids),
            "stop_token_ids are missing. An option that is accepted and then ignored is worse than one that is"
            " refused.",
        ),
        Mutant(
            lambda params, config: {*(() if params.ignore_eos else config.eos_token_ids), params.stop_token_ids},
            "The tuple itself has become a member, and no token id equals it. `add` puts one thing in; for all of a"
            " tuple's it is `update`, or `|` between sets.",
        ),
        Mutant(
            lambda params, config: (
                frozenset(() if params.ignore_eos else config.eos_token_ids) & frozenset(params.stop_token_ids)
            ),
            "`&` keeps what is in both, and you want what is in either: `|`.",
        ),
        Mutant(
            lambda params, config: (
                frozenset(() if params.ignore_eos else config.eos_token_ids) ^ frozenset(params.stop_token_ids)
            ),
            "An id that is in both is lost: `^` keeps what is in one of the two. `|` keeps all.",
        ),
        Mutant(
            lambda params, config: (
                _united(params, config) - frozenset(config.eos_token_ids if params.ignore_eos else ())
                | {config.bos_token_id}
            ),
            "The token that *begins* a sequence does not end one.",
        ),
    ],
    alternatives=[
        lambda params, config: {*params.stop_token_ids, *(() if params.ignore_eos else config.eos_token_ids)},
        lambda params, config: list(params.stop_token_ids) + list(config.eos_token_ids) * (not params.ignore_eos),
        lambda params, config: (
            frozenset(params.stop_token_ids)
            if params.ignore_eos
            else frozenset(params.stop_token_ids).union(config.eos_token_ids)
        ),
    ],
)

# --- 6.2: every limit just not reached, reached, and passed; several reasons at once ---------------------------------

_STOP = (2, 0, 30)


def _reason_case(
    given: str, want: str | None, *, token: int = 17, count: int = 3, most: int = 10, length: int = 8, room: int = 20
) -> Case:
    given += f": token_id = {token}, stop_ids = {{0, 2, 30}}, count = {count} of {most}, length = {length} of {room}"

    def observe(f: Function) -> Observation:
        stop_ids = set(_STOP)
        result = f(token, stop_ids, count, most, length, room)
        if isinstance(result, str):
            result = str.__str__(result)  # a member of a `class Reason(str, Enum)` is its text
        return {"the result": result, "stop_ids afterwards": UNTOUCHED if stop_ids == set(_STOP) else CHANGED}

    return Case(given, observe, lambda: {"the result": want, "stop_ids afterwards": UNTOUCHED})


_REASON_CASES = [
    _reason_case("in the middle of an answer", None),
    _reason_case("early in an answer to a long prompt", None, length=12),
    _reason_case("later in it", None, count=6, length=16),
    _reason_case("an end-of-sequence token", "stop", token=2),
    _reason_case("id 0, which is an id like any other", "stop", token=0),
    _reason_case("the token before the last one wanted", None, count=9, length=14),
    _reason_case("the last one wanted", "length", count=10, length=15),
    _reason_case("one token wanted, and here it is", "length", count=1, most=1, length=6),
    _reason_case("one place left in the context", None, length=19),
    _reason_case("the context's last place", "length", length=20),
    _reason_case("the last one wanted, which ends the answer", "stop", token=30, count=10, length=15),
    _reason_case("the context's last place, and the token ends the answer", "stop", token=2, length=20),
    _reason_case("both limits at once", "length", count=10, length=20),
    _reason_case("a prompt that fills the context, and what follows it", "length", count=1, length=21),
    _reason_case("a first token that ends the answer", "stop", token=30, count=1, length=6),
]


def _reason(count_done: Any, room_done: Any, stopped: Any = None, stop: str | None = "stop") -> Function:
    """An answer that looks at the token first, then at either limit."""
    stopped = stopped or (lambda token, stop_ids: token in stop_ids)

    def answer(token: int, stop_ids: Any, count: int, most: int, length: int, room: int) -> str | None:
        if stopped(token, stop_ids):
            return stop
        return "length" if count_done(count, most) or room_done(length, room) else None

    return answer


def _reached(n: int, limit: int) -> bool:
    return n >= limit


def _equal(n: int, limit: int) -> bool:
    return n == limit


def _never(n: int, limit: int) -> bool:
    return False


def _limits_first(token: int, stop_ids: Any, count: int, most: int, length: int, room: int) -> str | None:
    if count >= most or length >= room:
        return "length"
    return "stop" if token in stop_ids else None


def _with_sums(done: Any) -> Function:
    """The token first, then a question about all four numbers."""

    def answer(token: int, stop_ids: Any, count: int, most: int, length: int, room: int) -> str | None:
        return "stop" if token in stop_ids else "length" if done(count, most, length, room) else None

    return answer


def _beyond_the_context(token: int, stop_ids: Any, count: int, most: int, length: int, room: int) -> str | None:
    if length > room:
        return "abort"
    return "stop" if token in stop_ids else "length" if count >= most or length == room else None


class _Reason(StrEnum):
    """Equal to their texts."""

    STOP = "stop"
    LENGTH = "length"


FINISH_REASON = Grader(
    cases=_REASON_CASES,
    mutants=[
        Mutant(
            _limits_first,
            "You ask for the limits first. A token that ends the answer at the last allowed place has ended it: the"
            ' answer is whole, and "length" would tell its reader that something is missing.',
        ),
        Mutant(
            _reason(lambda n, most: n > most, _reached),
            "An answer of max_tokens tokens goes on. count includes the token at hand, so with count == max_tokens all"
            " that were wanted are there.",
        ),
        Mutant(
            _reason(_equal, _equal),
            "You ask whether a limit is met exactly. A prompt may fill the context alone, and what follows it stands"
            " beyond it already: ask with >=.",
        ),
        Mutant(
            _reason(lambda n, most: n + 1 >= most, _reached),
            "One token too few: count includes the token at hand already. The request ends when count reaches"
            " max_tokens, not one before.",
        ),
        Mutant(
            _reason(_reached, lambda n, room: n > room),
            "One token too many for the context: length includes the token at hand, so with length == max_seq_len"
            " every place is taken.",
        ),
        Mutant(
            _reason(_reached, lambda n, room: n + 1 >= room),
            "You give one place of the context away: length includes the token at hand, and it may stand in the last"
            " place. Nothing needs room behind it, for it is never computed.",
        ),
        Mutant(
            _reason(_reached, _never),
            "You never look at the context. The next pass would stand at a position that the model does not have.",
        ),
        Mutant(
            _reason(lambda n, most: False, lambda n, room: False),
            "You look at the token alone. A model that never produces an ending token would never end.",
        ),
        Mutant(
            lambda token, stop_ids, count, most, length, room: (
                "stop" if token in stop_ids or count >= most or length >= room else None
            ),
            'You say "stop" for everything. Then nobody can tell an answer that is whole from one that was cut off: a'
            ' limit that is reached is "length".',
        ),
        Mutant(
            lambda token, stop_ids, count, most, length, room: (
                "stop" if token in stop_ids else "length" if count >= most and length >= room else None
            ),
            "You want both limits reached. Either of them is enough.",
        ),
        Mutant(
            _reason(lambda n, most: n > most, lambda n, room: n > room),
            "Both limits come one token too late: count and length include the token at hand, so a limit is reached"
            " when they are equal to it. Ask with >=.",
        ),
        Mutant(
            _with_sums(lambda count, most, length, room: length >= most or length >= room),
            "You compare the length of the whole text with max_tokens, which is about the completion alone: there it"
            " is count.",
        ),
        Mutant(
            _with_sums(lambda count, most, length, room: count >= most or length + count >= room),
            "You add count to length. length has the generated tokens in it already: compare it with max_seq_len as it"
            " is.",
        ),
        Mutant(
            _reason(_reached, _reached, lambda token, stop_ids: token == next(iter(stop_ids))),
            "You look at one of the stop ids only. There may be several: token_id in stop_ids.",
        ),
        Mutant(
            _reason(_reached, _reached, lambda token, stop_ids: token == stop_ids),
            "No token ever ends the answer. stop_ids is a collection, and a token is not equal to it but in it.",
        ),
        Mutant(
            _reason(_reached, _reached, lambda token, stop_ids: token and token in stop_ids),
            "Id 0 is a token like any other (SmolLM2's <|endoftext|>, for one): do not ask whether token_id is true,"
            " ask whether it is in stop_ids.",
        ),
        Mutant(
            lambda token, stop_ids, count, most, length, room: (
                "stop" if token in stop_ids else "length" if count >= most or length >= room else "None"
            ),
            'You return the text "None", which is true in an `if`: the request would end at its first token. Return'
            " None itself.",
        ),
        Mutant(
            lambda token, stop_ids, count, most, length, room: (
                "stop" if token in stop_ids else "length" if count >= most or length >= room else ""
            ),
            "Where the request goes on you return something that is not None. A caller that asks `is None` takes it"
            " for a reason.",
        ),
        Mutant(
            lambda token, stop_ids, count, most, length, room: (
                "stop" if token in stop_ids else "length" if count >= most or length >= room else False
            ),
            "Where the request goes on you return False, and `is None` is what its caller asks. Return None: there is"
            " no reason.",
        ),
        Mutant(
            _beyond_the_context,
            'Beyond the context is no other reason: the answer is cut off by a limit, which is "length". ("abort" is'
            " for a reader who went away, and the loop never says it.)",
        ),
        Mutant(
            lambda token, stop_ids, count, most, length, room: (
                "eos" if token in stop_ids else "length" if count >= most or length >= room else None
            ),
            'The reason for a token that ends the answer is called "stop", whichever token it is. That is the name'
            " which clients of the OpenAI API look for.",
        ),
    ],
    alternatives=[
        lambda token, stop_ids, count, most, length, room: (
            _Reason.STOP if token in stop_ids else _Reason.LENGTH if count >= most or length >= room else None
        ),
        lambda token, stop_ids, count, most, length, room: (
            "stop" if token in stop_ids else "length" if count == most or not length < room else None
        ),
        lambda token, stop_ids, count, most, length, room: next(
            (
                why
                for why, yes in (("stop", token in stop_ids), ("length", min(most - count, room - length) <= 0))
                if yes
            ),
            None,
        ),
    ],
)
