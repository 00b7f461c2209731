"""Bodies that are wrong, many thousands of them: is each one refused, in the one shape, and soon?"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from minillm.benchmark.serving.target import Target
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest
from minillm.server.tokenization import DetokenizeRequest, TokenizeRequest

AT_A_TIME = 8
REFUSAL_S = 60.0
"""What takes longer counts as a hang."""

SHAPE = {"message", "type", "param", "code"}
KINDS = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e300, 2**63, 2**64, -(10**40), "", "x", "\ud800", "\x00", "x" * 5000),
    *([], {}, [[]], [None], [{}], {"": None}, {"role": "user"}, [{"role": "nobody", "content": 1}], [1, "a"], "NaN"),
)


@dataclass(frozen=True)
class Fuzzed:
    """statuses: how often each. wrong: what was no refusal in the one shape, each as a sentence. valid: bodies that
    turned out to be right, and were answered.
    """

    bodies: int
    statuses: Counter[int]
    valid: int
    wrong: tuple[str, ...]


async def fuzz(target: Target, bodies: int, seed: int = 0) -> Fuzzed:
    """Send as many bodies, a few at a time."""
    choose = random.Random(seed)
    statuses, wrong, valid = Counter[int](), list[str](), 0
    left = iter(range(bodies))

    async def send(client: httpx.AsyncClient) -> None:
        nonlocal valid
        for _ in left:
            path, data = _body(target.model, choose)
            try:
                response = await client.post(path, content=data, headers={"content-type": "application/json"})
            except httpx.HTTPError as error:
                wrong.append(f"{type(error).__name__} at {path}: {data[:200]!r}")
                continue
            statuses[response.status_code] += 1
            if response.status_code == 200:
                valid += 1
            elif not _is_refusal(response):
                wrong.append(f"{response.status_code} at {path}: {data[:200]!r}: {response.text[:200]}")

    async with target.client(REFUSAL_S) as client:
        await asyncio.gather(*(send(client) for _ in range(AT_A_TIME)))
    return Fuzzed(bodies, statuses, valid, tuple(wrong))


def _is_refusal(response: httpx.Response) -> bool:
    if not 400 <= response.status_code < 500:
        return False
    try:
        return set(response.json()["error"]) == SHAPE
    except (ValueError, KeyError, TypeError):
        return False


def _right(path: str, model: str) -> dict[str, Any]:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
        "/v1/completions": {"prompt": "hi", "max_tokens": 1},
        "/tokenize": {"prompt": "hi"},
        "/detokenize": {"tokens": [1]},
    }
    return {"model": model, **bodies[path]}


def _body(model: str, choose: random.Random) -> tuple[str, bytes]:
    """A path, and a body for it with something wrong in it."""
    path = choose.choice(sorted(KINDS))
    body = _right(path, model)
    spoil = choose.choice(SPOILERS)
    return path, spoil(path, body, choose)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _wrong_values(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    for _ in range(choose.randint(1, 3)):
        body[choose.choice(sorted(KINDS[path].model_fields))] = choose.choice(VALUES)
    return _json(body)


def _unknown_fields(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    name = "".join(choose.choice('abc_\ud800\x00"é') for _ in range(choose.randint(1, 9)))
    return _json({**body, name: choose.choice(VALUES)})


def _missing_fields(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    del body[choose.choice([name for name in body if name not in ("model", "max_tokens")])]
    return _json(body)


def _cut(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    data = _json(body)
    return data[: choose.randrange(len(data))]


def _changed_bytes(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    data = bytearray(_json(body))
    for _ in range(choose.randint(1, 4)):
        data[choose.randrange(len(data))] = choose.randrange(256)
    return bytes(data)


def _random_bytes(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    return choose.randbytes(choose.randrange(200))


def _no_object(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    return _json(choose.choice(VALUES))


def _deep(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    depth, inner = choose.choice((50, 900, 20_000)), choose.choice((("[", "]"), ('{"a":', "}")))
    text = inner[0] * depth + "1" + inner[1] * depth
    name = choose.choice(sorted(KINDS[path].model_fields))
    return f"{json.dumps(body)[:-1]}, {json.dumps(name)}: {text}}}".encode()


def _not_finite(path: str, body: dict[str, Any], choose: random.Random) -> bytes:
    number = choose.choice(("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000))
    return f'{json.dumps(body)[:-1]}, "temperature": {number}}}'.encode()


SPOILERS: tuple[Callable[[str, dict[str, Any], random.Random], bytes], ...] = (
    _wrong_values,
    _wrong_values,
    _wrong_values,
    _unknown_fields,
    _missing_fields,
    _cut,
    _changed_bytes,
    _random_bytes,
    _no_object,
    _deep,
    _not_finite,
)
