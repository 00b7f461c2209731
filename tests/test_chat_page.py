"""The page at `/`: a conversation, its tokens, the engine beside it; what goes wrong; and who can use it."""

import contextlib
import json
import re

import httpx
import pytest
from live_pages import LivePage, chromium
from serving import NAME, running, slow_down, tiny_llm
from web_pages import HOSTILE

from minillm import LLM
from minillm.server.settings import Settings

WORDS = ("the cat sat on the mat", "and the dog? 🙂\nsecond line")
OTHER = {"model": NAME, "prompt": "the cat sat on the mat", "max_tokens": 400, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return tiny_llm(tmp_path_factory)


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@contextlib.contextmanager
def opened(browser, llm, settings=None, **sizes):
    """A server, its page, and another client of it."""
    with (
        running(llm, settings, **sizes) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
        LivePage(browser, f"{server.url}/") as page,
    ):
        yield server, page, http


def settle(page) -> None:
    """Nothing is under way."""
    page.wait(lambda: page.page.locator("#send").is_visible() and page.js("asking === null"), "the answer's end")


def say(page, words: str) -> None:
    """By the keyboard alone: the focus is in the message's field."""
    assert page.js("document.activeElement.id") == "message"
    for line in words.split("\n"):
        if line != words.split("\n")[0]:
            page.key("Shift+Enter")
        page.page.keyboard.insert_text(line)
    page.key("Enter")


def set_up(page, **fields) -> None:
    """Settings of the page, and the focus back where the reader writes."""
    page.js("() => { document.getElementById('settings').open = true }")
    for name, value in fields.items():
        page.page.fill(f"#{name.replace('_', '-')}", str(value))
    page.js("() => { document.getElementById('settings').open = false }")
    page.page.focus("#message")


def api_answer(http, messages, **fields):
    body = {"model": NAME, "messages": messages, "temperature": 0, "logprobs": True, "return_token_ids": True, **fields}
    return http.post("/v1/chat/completions", json=body).json()


def test_the_page_is_open_to_all_and_lets_in_no_other_script(llm) -> None:
    with running(llm, Settings(api_key="s3cret")) as server, httpx.Client(base_url=server.url) as http:
        page = http.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert re.fullmatch(r"'sha256-[A-Za-z0-9+/=]{44}'", policy["script-src"])
        assert not re.search(r"\son\w+=|\sstyle=|https?://(?!www\.w3\.org/2000/svg)", page.text), (
            "no handler, no address"
        )
        assert "s3cret" not in page.text
        head = http.head("/")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(page.content))
        assert http.get("/engine").status_code == 401
        assert http.post("/").status_code in (401, 405)


def test_a_conversation_is_what_the_api_says_and_its_tokens_are_all_there(browser, llm) -> None:
    with opened(browser, llm) as (server, page, http):
        page.wait(lambda: page.text("about").startswith(f"{NAME} · context of 512 tokens"))
        set_up(page, temperature=0, max_tokens=24, seed=5, system="be brief")
        messages = [{"role": "system", "content": "be brief"}]
        for turn, words in enumerate(WORDS):
            say(page, words)
            settle(page)
            messages.append({"role": "user", "content": words})
            answer = api_answer(http, messages, max_tokens=24)
            choice = answer["choices"][0]
            assert page.texts(".turn.user .text")[-1] == words
            assert page.texts(".turn.assistant .text")[turn] == choice["message"]["content"]
            messages.append({"role": "assistant", "content": choice["message"]["content"]})
            assert page.texts("#tokens .token small") == [str(one) for one in choice["token_ids"]]
            told = page.js("[...document.querySelectorAll('#tokens .token')].map(e => e.getAttribute('aria-label'))")
            assert all(
                re.search(r"^Token \d+: [^\x00]+, id \d+, probability (< |> )?[\d.]+ %$", one, re.S) for one in told
            )
            found = page.js("strip.answer.tokens.map(one => one.probability)")
            assert found == pytest.approx(
                [2.718281828 ** one["logprob"] for one in choice["logprobs"]["content"]], rel=1e-4
            )
            assert page.js("strip.answer.promptIds") == answer["prompt_token_ids"]
            assert page.js("[...document.querySelectorAll('#steps .done')].length") == 5
        assert "were in the cache" in page.texts("#steps span")[1], "the first turn was found again"
        assert "tokens/s" in page.text("tpot")
        assert page.text("spoken") == messages[-1]["content"], "said once, whole"
        page.page.click("#prompt-details summary")
        page.wait(lambda: page.texts("#prompt .token small") == [str(one) for one in answer["prompt_token_ids"]])
        shown = page.texts("#prompt .token bdi")
        assert shown[0] == "<|im_start|>"
        assert "⏎" in shown
        assert any(re.fullmatch(r"(F0|9F|99|82)( [0-9A-F]{2})*", one) for one in shown), "part of a character"
        page.page.click("#tokens .token >> nth=3")
        assert page.text("choice-title").startswith("Token 4 ")
        rows = page.js("[...document.querySelectorAll('#choice li')].map(e => e.className)")
        assert len(rows) >= 5
        assert rows.count("chosen") == 1
        page.key("ArrowRight", "ArrowRight")
        assert page.text("choice-title").startswith("Token 6 ")
        assert page.js("document.querySelectorAll('#tokens [tabindex=\"0\"]').length") == 1
        page.page.click("#new")
        page.wait(lambda: page.texts(".turn") == [])
        assert page.js("turns.length") == 0
        assert page.complaints == []
        assert {httpx.URL(one).host for one in page.asked if not one.startswith("data:")} == {"127.0.0.1"}
        assert {httpx.URL(one).port for one in page.asked if not one.startswith("data:")} == {server.port}


def test_others_are_seen_and_stopping_frees_the_request_and_its_blocks(browser, llm) -> None:
    with opened(browser, llm, num_blocks=600) as (server, page, http), contextlib.ExitStack() as streams:
        slow_down(server, 0.03)
        lines = streams.enter_context(http.stream("POST", "/v1/completions", json=OTHER)).iter_lines()
        next(lines)
        page.wait(lambda: page.text("about").startswith(NAME))
        set_up(page, temperature=1, seed=3, max_tokens=400)
        say(page, WORDS[0])
        page.wait(lambda: page.js("document.querySelectorAll('#tokens .token').length") > 5, "some tokens")
        firsts = [["yours", "decodes"], ["another's", "decodes"]]
        cells = "[...document.querySelectorAll('#requests tbody tr')].map(r => [...r.children].map(c => c.textContent))"
        page.wait(lambda: [row[:2] for row in page.js(cells)] == firsts, "both rows")
        mine = page.js("watch.mine")
        assert mine in server.engine.requests
        assert page.js("document.querySelectorAll('#blocks .mine').length") > 0
        page.wait(
            lambda: page.js("document.querySelectorAll('#gaps .crowd').length") > 0, "others' effect on the times"
        )
        seen = page.js("({state: watch.state, words: document.getElementById('blocks-words').textContent})")
        assert seen["words"].startswith(f"{seen['state']['blocks']['used']} of 600 blocks in use")
        assert seen["state"]["blocks"]["used"] == sum(seen["state"]["blocks"]["used_by_cell"]) > 0
        spoken = page.text("spoken")
        assert spoken == "The model answers.", "the live region does not say each token"
        page.key("Escape")
        settle(page)
        server.wait_until(lambda: mine not in server.engine.requests)
        assert len(server.engine.requests) == 1, "the other one goes on"
        kept = page.texts(".turn.assistant .text")[0]
        assert kept
        assert page.texts(".turn.assistant .end")[0].startswith("You stopped it")
        say(page, WORDS[1])
        page.wait(lambda: page.js("strip.answer.text.length") > 0)
        assert page.js("promptMessages.map(one => one.role)") == ["user", "assistant", "user"]
        page.page.click("#stop")
        settle(page)
        streams.close()
        server.wait_until(lambda: not server.engine.requests)
        page.wait(lambda: page.text("blocks-words").startswith("0 of 600 "), "an empty pool")
        pool, cache = server.engine.scheduler.pool, server.engine.scheduler.prefix_cache
        held = sum(pool.users(block) == 0 and block in cache for block in range(600))
        assert f" {held} more are kept" in page.text("blocks-words")
        assert page.js("[...document.querySelectorAll('#blocks i')].length") == 300
        assert page.complaints == []


def instead(answer: dict | None):
    """What answers in the place of the server: so, or, where it is None, not at all."""
    return lambda route: route.fulfill(**answer) if answer is not None else route.abort()


def stream_of(*pieces: str, end=None) -> dict:
    """What a server might send, for `route.fulfill`: a chat's chunks, one for each piece."""

    def chunk(delta, reason=None, **more):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, **more}
        return {"id": "chatcmpl-1", "prompt_token_ids": [1, 2, 3], "choices": [choice]}

    def token(index, piece):
        entry = {"token": piece, "logprob": -0.5, "bytes": list(piece.encode(errors="replace"))}
        return chunk({"content": piece}, logprobs={"content": [{**entry, "top_logprobs": [entry]}]}, token_ids=[index])

    chunks = [chunk({"role": "assistant", "content": ""}), *(token(i, one) for i, one in enumerate(pieces))]
    last = ["[DONE]"] if end is None else [json.dumps(end)]
    ended = [] if end is not None else [json.dumps(chunk({}, "stop"))]
    events = [*map(json.dumps, chunks), *ended, *last]
    body = "".join(f"data: {event}\n\n" for event in events)
    return {"status": 200, "content_type": "text/event-stream", "headers": {"x-request-id": "1"}, "body": body}


def test_what_goes_wrong_is_said_in_a_sentence_and_nothing_is_lost(browser, llm) -> None:
    def error(status, message):
        detail = {"message": message, "type": "t", "param": None, "code": None}
        return {"status": status, "content_type": "application/json", "body": json.dumps({"error": detail})}

    broken = {"error": {"message": "the pass failed", "type": "server_error", "param": None, "code": None}}
    answers = [
        (error(429, "8 choices run or wait already"), "The server is full: 8 choices run or wait already."),
        (error(503, "the server is shutting down"), "The server takes no requests now: the server is shutting down."),
        (stream_of("half", end=broken), "The answer broke off: the pass failed."),
        (None, "The server cannot be reached: look whether it still runs."),
    ]
    chat = "**/v1/chat/completions"
    with opened(browser, llm) as (server, page, http):
        page.wait(lambda: page.text("about").startswith(NAME))
        set_up(page, temperature=0, max_tokens=8)
        for number, (answer, told) in enumerate(answers):
            page.page.route(chat, instead(answer))
            if number == 0:
                say(page, WORDS[0])
            else:
                page.page.click("#again")
            settle(page)
            page.wait(lambda told=told: page.text("trouble-words") == told, told)
            page.page.unroute(chat)
        assert page.texts(".turn.user .text") == [WORDS[0]]
        page.page.click("#again")
        settle(page)
        wanted = api_answer(http, [{"role": "user", "content": WORDS[0]}], max_tokens=8)["choices"][0]["message"][
            "content"
        ]
        assert page.texts(".turn.assistant .text") == [wanted], "the half of an answer is gone"
        assert not page.page.locator("#trouble").is_visible()
        assert page.js("turns.map(one => one.role)") == ["user", "assistant"], "what broke off is no part of it"
        set_up(page, max_tokens=0)
        say(page, "again")
        page.wait(lambda: "The most tokens in the settings cannot be used" in page.text("trouble-words"))
        set_up(page, max_tokens=8)
        hostile = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"><b>"
        page.page.route(chat, instead(stream_of(hostile, HOSTILE)))
        page.page.click("#again")
        settle(page)
        page.page.unroute(chat)
        assert page.texts(".turn.assistant .text")[-1] == hostile + HOSTILE
        assert page.js("document.title").startswith("minillm")
        assert page.js("document.querySelectorAll('#turns script, #turns img, #turns b').length") == 0
        server.call(server.serving.close()).result(timeout=30)
        say(page, "are you there?")
        settle(page)
        page.wait(lambda: page.text("trouble-words").startswith("The server takes no requests now: "))
        assert page.texts(".turn.user .text")[-1] == "are you there?"
        roles = page.js("turns.map(one => one.role)")
        say(page, "hello?")
        settle(page)
        assert page.js("turns.map(one => one.role)") == roles, "who speaks takes turns, whatever failed"
        assert len(page.texts(".turn.user .end")) == 1, "what has no answer is marked"


def test_by_keyboard_and_in_a_hurry(browser, llm) -> None:
    with opened(browser, llm) as (server, page, _):
        slow_down(server, 0.02)
        page.wait(lambda: page.text("about").startswith(NAME))
        set_up(page, temperature=0, max_tokens=5000)
        page.page.keyboard.insert_text(WORDS[0])
        page.key("Tab")
        assert page.js("document.activeElement.id") == "send"
        page.key("Enter")
        page.wait(lambda: page.js("strip.answer !== null && strip.answer.text.length") > 0, "an answer")
        assert page.js("document.activeElement.id") == "stop", "the focus does not fall to nobody"
        (request,) = server.engine.requests.values()
        assert request.max_length == 512, "of 5,000 tokens, as many as there is room for"
        page.key("Enter")
        settle(page)
        assert page.js("document.activeElement.id") == "message"
        assert page.texts(".turn.assistant .end")[0].startswith("You stopped it")

        asked = []
        page.page.route("**/tokenize", lambda route: (asked.append(1), route.abort()))
        page.page.click("#prompt-details summary")
        page.page.focus("#message")
        say(page, WORDS[1])
        page.wait(lambda: page.js("strip.answer.tokens.length") > 20, "a longer answer")
        assert len(asked) <= 2, "what could not be had is asked for once in an answer"
        assert "cannot be reached" in page.text("prompt")

        slow_down(server, 0.5)
        page.key("Escape")
        settle(page)
        say(page, "not to be seen again")
        page.page.click("#new")
        page.wait(lambda: page.js("turns.length") == 0 and page.js("asking === null"), "a new conversation")
        assert page.js("document.getElementById('message').value") == ""
        server.wait_until(lambda: not server.engine.requests)


def test_the_key_is_asked_for_and_stays_in_the_tab(browser, llm) -> None:
    with opened(browser, llm, Settings(api_key="s3cret")) as (_, page, __):
        page.wait(lambda: page.page.locator("#key-form").is_visible())
        assert not [one for one in page.asked if one.endswith("/engine")], "nothing was tried without a key"
        assert page.js("document.activeElement.id") == "key"
        page.page.keyboard.insert_text("wrong")
        page.key("Enter")
        page.wait(lambda: "refused" in page.text("key-words"), "the refusal")
        page.page.keyboard.insert_text("s3cret")
        page.key("Enter")
        page.wait(lambda: page.text("about").startswith(NAME), "the engine")
        assert not page.page.locator("#key-form").is_visible()
        assert page.js("document.activeElement.id") == "message"
        set_up(page, temperature=0, max_tokens=4)
        say(page, WORDS[0])
        settle(page)
        assert len(page.texts("#tokens .token")) == 4
        assert page.js("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
        assert all("s3cret" not in one for one in page.asked)


def test_a_server_that_is_gone_is_told(browser, llm) -> None:
    with running(llm) as server:
        page = LivePage(browser, f"{server.url}/").__enter__()
        page.wait(lambda: page.text("about").startswith(NAME))
    try:
        page.page.focus("#message")
        say(page, WORDS[0])
        settle(page)
        page.wait(lambda: page.text("trouble-words").startswith("The server cannot be reached"), "the sentence")
        assert page.texts(".turn.user .text") == [WORDS[0]]
        assert page.page.locator("#again").is_visible()
    finally:
        page.__exit__()


def test_a_long_answer_keeps_the_page_light_and_all_can_read_and_use_it(browser, llm) -> None:
    with opened(browser, llm, num_blocks=600) as (_, page, __):
        page.wait(lambda: page.text("about").startswith(NAME))
        page.page.focus("#message")
        page.page.route("**/v1/chat/completions", instead(stream_of(*(f" w{i}" for i in range(2000)))))
        say(page, "the cat")
        settle(page)
        assert page.texts(".turn.assistant .text") == ["".join(f" w{i}" for i in range(2000))]
        assert page.texts("#tokens .token small") == [str(i) for i in range(1800, 2000)], "the newest of 2,000"
        assert page.js("document.querySelectorAll('*').length") < 1500
        page.page.click("#earlier")
        assert page.js("[...document.querySelectorAll('#tokens .token')].map(e => Number(e.dataset.index))") == list(
            range(1600, 1800)
        )
        page.page.click("#later")
        page.page.click("#prompt-details summary")
        page.page.click("#settings summary")
        page.page.click("#tokens .token >> nth=1")
        page.wait(lambda: page.texts("#prompt .token"))
        assert page.unnamed() == []
        for scheme in ("light", "dark"):
            page.page.emulate_media(color_scheme=scheme)
            assert page.low_contrast() == [], f"WCAG AA asks for a contrast of 4.5 ({scheme})"
            for width in (320, 390, 768):
                page.page.set_viewport_size({"width": width, "height": 844})
                assert page.js("document.documentElement.scrollWidth") <= width
        page.page.set_viewport_size({"width": 1280, "height": 1000})
        page.page.click("#theme")
        assert page.js("document.documentElement.dataset.theme") == "light"
        page.page.focus("#theme")
        order = []
        for _ in range(30):
            page.key("Tab")
            order.append(page.js("document.activeElement.id || document.activeElement.parentElement.id"))
        wanted = [
            "new",
            "turns",
            "message",
            "send",
            "settings",
            "temperature",
            "max-tokens",
            "seed",
            "system",
            "tokens",
        ]
        assert [one for one in order if one in wanted][: len(wanted)] == wanted
        assert page.complaints == []
