"""GET /engine: what it says is what the pool, the prefix cache and the scheduler hold, however many ask."""

import contextlib
import json
import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serving import NAME, running, slow_down, tiny_llm
from tiny import random_model

from minillm import LLM, SamplingParams
from minillm.engine import Engine
from minillm.engine.snapshot import MOST_RUNNING, MOST_WAITING, block_counts, take_snapshot
from minillm.machine.limits import Limits
from minillm.server import engine_state
from minillm.server.engine_state import MOST_CELLS

FOREVER = {"model": NAME, "prompt": "the cat sat on the mat", "max_tokens": 400, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return tiny_llm(tmp_path_factory)


@contextlib.contextmanager
def asked(llm, **sizes):
    """A server and its client."""
    with running(llm, **sizes) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        yield server, http


def by_hand(engine, per_cell: int) -> dict[str, list[int]]:
    """Blocks of each kind in each cell, counted one by one."""
    pool, cache = engine.scheduler.pool, engine.scheduler.prefix_cache
    cells: dict[str, list[int]] = {"used": [], "shared": [], "kept": []}
    for first in range(0, pool.num_blocks, per_cell):
        blocks = range(first, min(first + per_cell, pool.num_blocks))
        cells["used"].append(sum(pool.users(one) > 0 for one in blocks))
        cells["shared"].append(sum(pool.users(one) > 1 for one in blocks))
        cells["kept"].append(sum(pool.users(one) == 0 and one in cache for one in blocks))
    return cells


@pytest.mark.parametrize("most_cells", [1, 7, 60, 1000])
def test_the_map_counts_what_the_pool_holds_after_any_history(most_cells) -> None:
    """Shared prefixes, aborts, preemptions, blocks that are handed out anew: counted anew after each step."""
    draw = random.Random(3)
    engine = Engine(random_model(), num_blocks=60, block_size=4, max_batch_size=4, token_budget=16)
    kinds = set()
    for step in range(120):
        if step % 6 == 0:
            prefix = [7, 8, 9, 10, 11, 12, 13, 14, 15][: draw.choice([4, 8, 9])]
            engine.add([*prefix, *(draw.randrange(10, 90) for _ in range(draw.randrange(20)))], PARAMS)
        if step % 17 == 16 and engine.requests:
            engine.abort(draw.choice(list(engine.requests)))
        engine.step()
        snapshot = take_snapshot(engine)
        counts = block_counts(snapshot, most_cells)
        found = {kind: list(getattr(counts, kind)) for kind in ("used", "shared", "kept")}
        assert found == by_hand(engine, counts.per_cell)
        assert len(counts.used) <= most_cells
        assert sum(counts.used) == engine.scheduler.pool.num_used
        kinds |= {kind for kind, cells in found.items() if sum(cells)}
        running, waiting = engine.scheduler.running, engine.scheduler.waiting
        assert [one.id for one in snapshot.requests] == [r.request_id for r in (*running, *waiting)]
        for told, request in zip(snapshot.requests, (*running, *waiting), strict=True):
            assert (told.prompt, told.computed) == (len(request.prompt_ids), request.num_computed)
            assert (told.generated, told.blocks) == (request.num_generated, tuple(request.block_table))
    assert kinds == {"used", "shared", "kept"}, "all kinds were there to be counted"


PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def test_a_large_engine_makes_no_large_state() -> None:
    """Neither blocks nor requests are told one by one without end, and each kind of request is counted in full."""
    engine = Engine(
        random_model(), num_blocks=100_001, block_size=1, max_batch_size=MOST_RUNNING + 5, token_budget=1000
    )
    for _ in range(MOST_RUNNING + 5 + MOST_WAITING + 9):
        engine.add([1, 2, 3], SamplingParams(max_tokens=20, ignore_eos=True))
    engine.step()
    engine.step()
    snapshot = take_snapshot(engine)
    assert (snapshot.num_running, snapshot.num_waiting) == (MOST_RUNNING + 5, MOST_WAITING + 9)
    assert [one.running for one in snapshot.requests] == [True] * MOST_RUNNING + [False] * MOST_WAITING
    counts = block_counts(snapshot, MOST_CELLS)
    assert len(counts.used) <= MOST_CELLS
    assert sum(counts.used) == engine.scheduler.pool.num_used > MOST_RUNNING


def test_an_answer_s_id_finds_its_request_and_nobody_s_text_is_told(llm, monkeypatch) -> None:
    known = Limits("a machine", 3e10, {}, "2026-01-01")
    monkeypatch.setattr(engine_state, "known_limits", lambda device: known)
    with asked(llm, num_blocks=600) as (server, http), contextlib.ExitStack() as streams:
        slow_down(server, 0.02)
        idle = http.get("/engine").json()
        assert (idle["model"], idle["max_model_len"], idle["has_chat"]) == (NAME, 512, True)
        assert (idle["running"], idle["waiting"], idle["requests"], idle["steps"]) == (0, 0, [], [])
        assert idle["memory"]["bandwidth_bytes_per_s"] == 3e10
        assert idle["memory"]["kv_bytes_per_token"] == server.engine.cache.bytes_per_token
        ids, lines = [], []
        for body in (FOREVER, {**FOREVER, "n": 2, "seed": 1}):
            response = streams.enter_context(http.stream("POST", "/v1/completions", json=body))
            lines.append(response.iter_lines())  # kept: a stream whose reader is gone is closed
            ids.append(json.loads(next(lines[-1]).removeprefix("data: "))["id"])
        server.wait_until(lambda: len(server.engine.scheduler.running) == 3)
        busy = {"running": 0}
        while busy["running"] != 3:  # the last one may still be fresh
            reply = http.get("/engine")
            busy = reply.json()
        assert reply.headers["cache-control"] == "no-store"
        assert [one["id"] for one in busy["requests"]] == [ids[0], f"{ids[1]}-0", f"{ids[1]}-1"]
        for one in busy["requests"]:
            assert set(one) == set(engine_state.RequestTokens.model_fields), "counts, and no text"
            assert one["state"] == "running"
            assert one["max_tokens"] == 400
            assert one["computed_tokens"] == one["prompt_tokens"] + one["generated_tokens"] - 1
            assert one["blocks"] >= -(-one["computed_tokens"] // 4) >= len(one["cells"]) - 1
        blocks = busy["blocks"]
        assert (blocks["total"], blocks["block_size"], blocks["per_cell"]) == (600, 4, 2)
        assert sum(blocks["used_by_cell"]) == blocks["used"] > 0
        mine = {cell for one in busy["requests"] for cell in one["cells"]}
        assert mine == {cell for cell, used in enumerate(blocks["used_by_cell"]) if used}
        assert blocks["shared"] == sum(blocks["shared_by_cell"]) > 0, "they begin alike"
        assert all(step["seconds"] > 0 and step["tokens"] >= step["requests"] > 0 for step in busy["steps"])
        text = llm.tokenizer.decode(llm.tokenizer.encode(FOREVER["prompt"]))
        assert text not in reply.text
        streams.close()
        server.wait_until(lambda: not server.engine.requests)
        after = busy
        while after["running"]:
            after = http.get("/engine").json()
        assert after["blocks"]["used"] == 0 < after["blocks"]["kept"]
        assert after["blocks"]["kept"] == sum(by_hand(server.engine, 2)["kept"])


def test_many_who_ask_share_one_look(llm, monkeypatch) -> None:
    looks = []
    monkeypatch.setattr(engine_state, "FRESH_S", 3600.0)
    monkeypatch.setattr(engine_state, "known_limits", lambda device: None)
    monkeypatch.setattr(engine_state, "take_snapshot", lambda engine: [looks.append(engine), take_snapshot(engine)][-1])
    with asked(llm) as (_, http), ThreadPoolExecutor(8) as pool:
        bodies = list(pool.map(lambda _: http.get("/engine").text, range(40)))
    assert len(looks) == len(set(bodies)) == 1
    assert json.loads(bodies[0])["memory"]["bandwidth_bytes_per_s"] is None, "what nobody has measured is not known"


def test_an_engine_that_ended_has_no_state(llm) -> None:
    with asked(llm) as (server, http):
        server.call(server.serving.close()).result(timeout=30)
        reply = http.get("/engine")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "shutting_down")
