"""The page of `generate --trace-html`: the data in it, and what a reader sees of it in a browser."""

import dataclasses
import json
import math
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import save_tiny_model
from web_pages import HOSTILE, OpenPage, embedded

from minillm import LLM, SamplingParams
from minillm.cli import main as minillm
from minillm.errors import InputError
from minillm.metrics import decode_ceiling, tokens_held
from minillm.model import weight_bytes_per_pass
from minillm.page import check_destination, write_page
from minillm.trace import human_bytes, human_seconds
from minillm.trace_html import MOST_PROMPT_TOKENS, trace_of, with_alternatives, write_trace
from minillm.trace_page import render

BANDWIDTH = 2e9


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096))


@pytest.fixture(scope="module")
def tiny(tiny_dir):
    return LLM(tiny_dir, device="cpu", dtype="float32")


def run(tiny, prompt="the cat sat on", *, params=None, stop_after=None, **start):
    """A request that has run: to its end, or until `stop_after` pieces were out."""
    wishes = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, "seed": 1, "temperature": 2.0, **(params or {})})
    generation = tiny.start(prompt, with_alternatives(wishes), **start)
    for count, _ in enumerate(generation, start=1):
        if count == stop_after:
            break
    return generation


def trace(generation, bandwidth=BANDWIDTH):
    """The trace of a request as the page gets it, through JSON."""
    generation.bandwidth_bytes_per_s = bandwidth
    return embedded(render(dataclasses.asdict(trace_of(generation, "tiny"))))


# --- The data ---------------------------------------------------------------------------------------------


def test_every_token_is_there_with_its_id_probability_and_text(tiny):
    generation = run(tiny)
    tokens = trace(generation)["tokens"]
    assert [token["token"]["id"] for token in tokens] == [step.token_id for step in generation.steps]
    assert "".join(token["shown"] for token in tokens) == generation.completion().text
    for token, step in zip(tokens, generation.steps, strict=True):
        assert token["probability"] == pytest.approx(math.exp(step.logprob), abs=1e-5)
        own_bytes = tiny.tokenizer.id_to_bytes(step.token_id)
        text = token["token"]["text"]
        spelled = bytes.fromhex(token["token"]["bytes"]) if text is None else text.encode()
        assert spelled == own_bytes, "a token is its text, or its bytes where these are not whole characters"


def test_alternatives_come_with_their_probabilities_likeliest_first(tiny):
    for token in trace(run(tiny))["tokens"]:
        probabilities = [probability for _, probability in token["alternatives"]]
        assert len(probabilities) == 4
        assert probabilities == sorted(probabilities, reverse=True)


def test_a_user_s_own_wish_for_alternatives_is_kept():
    assert with_alternatives(SamplingParams(logprobs=0)).logprobs == 0
    assert with_alternatives(SamplingParams(logprobs=2)).logprobs == 2
    assert with_alternatives(SamplingParams()).logprobs == 4


def test_passes_and_tokens_follow_each_other_on_one_clock(tiny):
    result = trace(run(tiny))
    passes, tokens = result["passes"], result["tokens"]
    assert len(passes) == len(tokens)
    before = result["tokenize_s"]
    for one, token in zip(passes, tokens, strict=True):
        assert before <= one["start_s"] + 1e-6, "a pass starts when the token before it is there"
        assert one["start_s"] < one["end_s"] <= token["at_s"]
        assert token["at_s"] == pytest.approx(one["end_s"] + one["sample_s"], abs=3e-6)
        before = token["at_s"]


def test_the_times_are_those_that_were_measured(tiny):
    generation = run(tiny)
    result = trace(generation)
    assert [token["at_s"] for token in result["tokens"]] == [round(at_s, 6) for at_s in generation.token_times_s]
    took = [one["end_s"] - one["start_s"] for one in result["passes"]]
    measured = [generation.prefill_s, *(step.forward_s for step in generation.steps[1:])]
    assert took == pytest.approx(measured, abs=3e-6)


def test_a_pass_reads_the_weights_and_the_keys_and_values_of_every_token_so_far(tiny):
    generation = run(tiny)
    result = trace(generation)
    per_token, prompt = generation.cache.bytes_per_token, len(generation.prompt_ids)
    first, *others = result["passes"]
    assert (first["tokens"], first["kv_read_bytes"], first["kv_written_bytes"]) == (prompt, 0, prompt * per_token)
    for number, one in enumerate(others, start=1):
        assert (one["tokens"], one["kv_written_bytes"]) == (1, per_token)
        assert one["kv_read_bytes"] == (prompt + number) * per_token
    assert {one["weight_bytes"] for one in result["passes"]} == {weight_bytes_per_pass(tiny.model)}


def test_the_cache_s_slots_are_those_that_were_reserved_and_filled(tiny):
    generation = run(tiny)
    result = trace(generation)
    cache = generation.cache
    assert result["cache"] == {
        "slots": cache.max_seq_len,
        "bytes_per_token": cache.bytes_per_token,
        "reserved_bytes": cache.reserved_bytes,
        "cached_tokens": 0,
    }
    filled = sum(one["tokens"] for one in result["passes"])
    assert filled == tokens_held(len(generation.prompt_ids), 12) == cache.length


def test_without_a_cache_each_pass_computes_all_tokens_and_none_are_kept(tiny):
    generation = run(tiny, use_cache=False)
    result = trace(generation)
    prompt = len(generation.prompt_ids)
    assert result["cache"] is None
    assert [one["tokens"] for one in result["passes"]] == list(range(prompt, prompt + 12))
    assert all(one["kv_read_bytes"] == one["kv_written_bytes"] == 0 for one in result["passes"])
    assert "Without a cache" in trace(generation, 1e15)["ceiling"]["sentence"]


def test_a_cached_prefix_is_not_computed_again_but_read(tiny):
    first = run(tiny, "the cat sat on the mat")
    ids = list(first.prompt_ids)
    cache = tiny.new_cache(100)
    held = run(tiny, "the cat sat on the mat", params={"max_tokens": 1}, cache=cache)
    assert cache.length == len(ids)
    generation = run(tiny, "the cat sat on the mat, and the dog", cache=cache, cached_ids=ids)
    assert held.cached_tokens == 0
    result, cached = trace(generation), generation.cached_tokens
    assert cached > 0
    assert result["cache"]["cached_tokens"] == cached
    assert result["passes"][0]["tokens"] == len(generation.prompt_ids) - cached
    assert result["passes"][0]["kv_read_bytes"] == cached * cache.bytes_per_token


def test_an_interrupted_request_has_the_tokens_that_were_there(tiny):
    generation = run(tiny, stop_after=5)
    result = trace(generation)
    assert len(result["tokens"]) == len(result["passes"]) == 5
    assert "".join(token["shown"] for token in result["tokens"]) == generation.completion().text
    assert result["ended"].startswith("Interrupted")


@pytest.mark.parametrize("where", ["before the prefill was done", "before the first token"])
def test_a_request_that_was_interrupted_before_its_first_token_has_a_page_too(tiny, where):
    generation = tiny.start("the cat", SamplingParams(max_tokens=3))
    generation.prefill_s = 0.0 if where == "before the prefill was done" else 0.25
    result = trace(generation)
    assert result["tokens"] == []
    assert len(result["passes"]) == (1 if generation.prefill_s else 0)


@pytest.mark.parametrize(
    ("params", "words"),
    [({}, "12 tokens were asked for"), ({"max_tokens": 9000}, "context is full"), ({"stop": "{}"}, "Stop string")],
)
def test_the_end_says_why(tiny_dir, tiny, tmp_path, params, words):
    if words == "context is full":
        tiny = LLM(save_tiny_model(tmp_path, max_position_embeddings=30), device="cpu", dtype="float32")
    if "stop" in params:
        params = {"stop": run(tiny).completion().text[3:5]}
    assert words in trace(run(tiny, params=params))["ended"]


def test_the_ceiling_is_memory_s_for_the_mean_pass_and_says_what_share_was_reached(tiny):
    generation = run(tiny)
    ceiling = trace(generation)["ceiling"]
    passes = trace(generation)["passes"][1:]
    mean_kv = sum(one["kv_read_bytes"] for one in passes) / len(passes)
    most = decode_ceiling(BANDWIDTH, float(weight_bytes_per_pass(tiny.model)), mean_kv)
    assert ceiling["tokens_per_s"] == pytest.approx(most)
    assert ceiling["share"] == pytest.approx(generation.metrics().decode_tokens_per_s / most)
    assert human_bytes(int(BANDWIDTH)) in ceiling["sentence"]


def test_a_run_faster_than_memory_is_explained(tiny):
    ceiling = trace(run(tiny), bandwidth=1.0)["ceiling"]
    assert ceiling["share"] > 1
    assert "processor's own caches" in ceiling["sentence"]


def test_where_bandwidth_cannot_be_measured_a_sentence_says_so(tiny, monkeypatch):
    def fail(device):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("minillm.machine.limits.read_bandwidth", fail)
    generation = run(tiny)
    generation.bandwidth_bytes_per_s = None
    generation.measure_bandwidth()
    ceiling = trace(generation, generation.bandwidth_bytes_per_s)["ceiling"]
    assert "could not be measured" in ceiling["sentence"]
    assert ceiling["share"] is None


def test_one_token_has_no_decode_to_compare(tiny):
    result = trace(run(tiny, params={"max_tokens": 1}))
    assert len(result["passes"]) == 1
    assert result["ceiling"]["share"] is None
    assert "at least two tokens" in result["ceiling"]["sentence"]


def test_a_very_long_prompt_is_shown_by_its_ends(tiny):
    result = trace(run(tiny, "the dog " * (MOST_PROMPT_TOKENS - 100), params={"max_tokens": 2}))
    assert result["prompt_tokens"] > len(result["prompt"]) == MOST_PROMPT_TOKENS
    assert result["prompt_skipped_after"] == MOST_PROMPT_TOKENS // 2


def test_text_cannot_end_the_script_that_carries_it(tiny):
    html = render(dataclasses.asdict(trace_of(run(tiny, HOSTILE), HOSTILE)))
    assert embedded(html)["model"] == HOSTILE
    assert html.count("</script>") == 2, "one for the data, one for the scripts"
    texts = [token["text"] for token in embedded(html)["prompt"]]
    assert "<" in "".join(text or "" for text in texts)


def test_the_page_names_no_other_place():
    html = render({})
    addresses = set(re.findall(r"\b\w+://[^\s\"'`)]+", html)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set(), "the name space of SVG is a name; nothing is loaded"
    assert not re.search(r"<link(?![^>]*data:)|\bsrc=|@import|url\(", html)


# --- The file, and the command ------------------------------------------------------------------------------


def on(directory):
    return "--model", directory, "--dtype", "float32", "--raw", "--prompt", "the cat", "--max-tokens", "6"


def call(capsys, *args):
    try:
        code = minillm(["generate", *args])
    except SystemExit as stop:
        code = stop.code
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_writes_the_page_and_says_where(tiny_dir, tmp_path, capsys):
    file = tmp_path / "out.html"
    code, plain, _ = call(capsys, *on(tiny_dir))
    assert code == 0
    code, out, err = call(capsys, *on(tiny_dir), "--trace-html", str(file))
    assert (code, out) == (0, plain), "stdout is the completion, as ever"
    assert str(file) in err
    result = embedded(file.read_text(encoding="utf-8"))
    assert "".join(token["shown"] for token in result["tokens"]) + "\n" == out
    assert result["model"] == tiny_dir.rstrip("/").rpartition("/")[2], "a page that is passed on shows no directories"
    assert result["ceiling"]["tokens_per_s"] > 0
    assert list(tmp_path.iterdir()) == [file], "nothing else is left"


def test_the_json_output_does_not_change(tiny_dir, tmp_path, capsys):
    page = ("--trace-html", str(tmp_path / "out.html"))
    without = json.loads(call(capsys, *on(tiny_dir), "--json")[1])
    with_page = json.loads(call(capsys, *on(tiny_dir), "--json", *page)[1])
    assert with_page["logprobs"] is None
    assert {**with_page, "metrics": None} == {**without, "metrics": None}
    asked = json.loads(call(capsys, *on(tiny_dir), "--json", "--logprobs", "2", *page)[1])
    assert len(asked["logprobs"][0]["top"]) == 2


@pytest.mark.parametrize("place", ["no-such-directory/out.html", ".", "a-file/out.html", "x" * 300 + ".html"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_generated(tiny_dir, tmp_path, capsys, place):
    (tmp_path / "a-file").touch()
    code, out, err = call(capsys, *on(tiny_dir), "--trace-html", str(tmp_path / place))
    assert (code, out) == (2, "")
    assert "page cannot be written" in err
    assert str(tmp_path) in err
    assert err.count("\n") == 1, "one sentence, and nothing was begun"
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_a_device_is_refused_and_not_replaced_by_a_file():
    with pytest.raises(InputError, match="ordinary"):
        check_destination(Path(os.devnull))
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_page_replaces_another_whole_and_keeps_links_and_modes(tmp_path):
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_text("old", encoding="utf-8")
    link.symlink_to(real)
    write_page(link, "new")
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "new"
    plain = tmp_path / "plain"
    plain.touch()
    assert real.stat().st_mode == plain.stat().st_mode, "others can read it if they could read any new file"


def test_a_failure_while_writing_leaves_the_old_page(tmp_path, monkeypatch):
    file = tmp_path / "out.html"
    file.write_text("old", encoding="utf-8")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InputError, match="No space left"):
        write_page(file, "new")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_ctrl_c_still_leaves_a_page(tiny_dir, tmp_path):
    import signal

    file = tmp_path / "out.html"
    command = [sys.executable, "-m", "minillm.generate", "--raw", "--prompt", "the cat", "--ignore-eos"]
    command += ["--max-tokens", "3900", "--model", tiny_dir, "--temperature", "1", "--trace-html", str(file)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    result = embedded(file.read_text(encoding="utf-8"))
    assert result["ended"].startswith("Interrupted")
    assert 0 < len(result["tokens"]) < 3900


# --- The page, in a browser ---------------------------------------------------------------------------------


class Page(OpenPage):
    """A trace page, open in the browser."""

    def scrub(self, seconds):
        """Move the slider as a finger does: a new value, and its event."""
        self.browser.execute_script(
            "const slider = document.getElementById('scrub'); slider.value = arguments[0];"
            "slider.dispatchEvent(new Event('input', {bubbles: true}))",
            seconds / self.js("replay.duration"),
        )

    def chips(self):
        """How many generated tokens can be seen."""
        return self.js(
            "[...document.querySelectorAll('#tokens .token')]"
            ".filter(chip => chip.checkVisibility({visibilityProperty: true})).length"
        )

    def squares(self, kind):
        return self.js(f"document.querySelectorAll('#slots .{kind}').length")


@pytest.fixture
def show(browser, tmp_path):
    """Write the page of a request and open it."""

    def opened(generation):
        file = tmp_path / "out.html"
        write_trace(file, generation, "tiny")
        return Page(browser, file)

    return opened


def kinds_of_requests(tiny):
    cache = tiny.new_cache(100)
    run(tiny, "the cat sat on", params={"max_tokens": 1}, cache=cache)
    ids = tiny.tokenizer.encode("the cat sat on")
    unstarted = tiny.start("the cat", SamplingParams(max_tokens=3))
    return {
        "plain": run(tiny),
        "no cache": run(tiny, use_cache=False),
        "a cached prefix": run(tiny, "the cat sat on the mat", cache=cache, cached_ids=ids),
        "one token": run(tiny, params={"max_tokens": 1}),
        "interrupted": run(tiny, stop_after=4),
        "interrupted before the first token": unstarted,
        "hostile text": run(tiny, HOSTILE, params={"temperature": 8.0, "max_tokens": 40}),
    }


def test_every_kind_of_request_loads_without_a_request_or_an_error_and_ends_with_the_whole_text(tiny, show):
    for name, generation in kinds_of_requests(tiny).items():
        page = show(generation)
        page.press("\ue010")  # End
        assert page.js("seconds") == page.js("replay.duration"), name
        assert page.chips() == len(generation.steps), name
        assert page.text("answer") == generation.completion().text, name
        assert page.text("about").startswith("tiny"), name
        assert page.js("document.title") == "The journey of a request: tiny", name
        assert page.complaints() == [], name
        assert page.addresses() == {page.file.as_uri()}, name


def test_it_plays_to_the_end_and_shows_every_token(tiny, show):
    generation = run(tiny)
    page = show(generation)
    assert page.chips() == 0, "it starts at the start"
    assert page.text("answer") == ""
    page.browser.find_element("css selector", "#speed option[value='0.05']").click()
    page.click("play")
    page.wait(lambda: 0 < page.chips() < 12)
    page.wait(lambda: page.text("play") == "Play")
    assert page.chips() == 12
    assert page.text("answer") == generation.completion().text


def test_it_can_be_paused_and_goes_on_where_it_was(tiny, show):
    page = show(run(tiny))
    page.press(" ")
    page.wait(lambda: page.js("seconds") > 0)
    page.press(" ")
    stopped = page.js("seconds")
    assert page.text("play") == "Play"
    assert 0 < stopped < page.js("replay.duration")
    page.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert page.js("seconds") == stopped, "nothing moves while it is paused"
    page.press(" ")
    page.wait(lambda: page.js("seconds") > stopped)


def test_scrubbing_shows_the_tokens_and_slots_of_that_moment(tiny, show):
    generation = run(tiny)
    page = show(generation)
    prompt = len(generation.prompt_ids)
    for number in (12, 1, 7, 3):
        page.scrub(page.data["tokens"][number - 1]["at_s"] + 1e-7)
        assert page.chips() == number
        assert page.squares("prompt") == prompt
        assert page.squares("made") == number - 1, "the last token has no slot yet"
        assert page.text("cache-words").startswith(f"{prompt + number - 1} of {prompt + 12} slots")
    page.scrub(0)
    assert (page.chips(), page.squares("prompt")) == (0, 0)
    middle_of_prefill = (page.data["passes"][0]["start_s"] + page.data["passes"][0]["end_s"]) / 2
    page.scrub(middle_of_prefill)
    assert (page.squares("prompt"), page.squares("writing")) == (0, prompt), "all of them are being written at once"
    assert "prefill" in page.text("phase")


def test_steps_go_from_token_to_token_by_keyboard_and_by_button(tiny, show):
    page = show(run(tiny))
    page.press("\ue010")  # End
    page.press("\ue012")  # left
    assert page.chips() == 11
    page.click("back")
    assert page.chips() == 10
    page.press("\ue014")  # right
    page.click("forward")
    assert page.chips() == 12
    page.press("\ue011")  # Home
    assert page.chips() == 0
    assert page.text("spoken").startswith("0.00 ms"), "what is shown is also said"


def test_the_mouse_moves_in_the_time_line_and_a_token_leads_to_its_moment(tiny, show):
    from selenium.webdriver import ActionChains

    page = show(run(tiny))
    line = page.browser.find_element("id", "timeline")
    ActionChains(page.browser).move_to_element(line).click().perform()
    assert page.js("seconds / replay.duration") == pytest.approx(0.5, abs=0.01)
    ActionChains(page.browser).move_to_element(line).click_and_hold().move_by_offset(100, 0).release().perform()
    moved = page.js("document.getElementById('timeline').getBoundingClientRect().width / 2 + 100")
    width = page.js("document.getElementById('timeline').getBoundingClientRect().width")
    assert page.js("seconds / replay.duration") == pytest.approx(moved / width, abs=0.01)
    page.press("\ue010")
    chip = page.browser.find_elements("css selector", "#tokens .token")[4]
    page.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chip)
    chip.click()
    assert page.chips() == 5


def test_the_speed_can_be_chosen(tiny, show):
    page = show(run(tiny))
    page.browser.find_element("css selector", "#speed option[value='50']").click()
    page.click("play")
    page.wait(lambda: page.text("play") == "Play", seconds=5)
    assert page.chips() == 12


def test_without_a_cache_the_page_counts_what_is_computed_again(tiny, show):
    generation = run(tiny, use_cache=False)
    page = show(generation)
    page.press("\ue010")
    prompt = len(generation.prompt_ids)
    computed = sum(range(prompt, prompt + 12))
    assert page.text("cache-words") == f"{computed} tokens computed so far; with a cache it would be {prompt + 11}."
    assert page.text("cache-title") == "No KV cache"


def test_slots_that_were_filled_before_are_marked(tiny, show):
    page = show(kinds_of_requests(tiny)["a cached prefix"])
    cached = page.data["cache"]["cached_tokens"]
    assert page.squares("cached") == cached > 0, "from the first moment on"


def test_long_answers_stay_usable(tiny, show):
    generation = run(tiny, params={"max_tokens": 2000}, stop_after=12)
    timed = generation.timed_steps
    while len(timed) < 2000:  # the page does not care whether each was really computed
        step, at_s = timed[-12][0], timed[-1][1]
        timed.append((step, at_s + step.forward_s + step.sample_s))
        generation.pieces.append(generation.pieces[-12])
    generation.pieces[-1] = dataclasses.replace(generation.pieces[-1], finish_reason="length")
    page = show(generation)
    assert page.js("document.querySelectorAll('#slots .slot').length") < 1000, "a square stands for several tokens"
    assert page.js("document.querySelectorAll('#timeline *').length") < 100, "columns share a few paths"
    page.press("\ue010")
    assert page.chips() == 2000
    assert page.text("answer") == generation.completion().text
    assert page.js("document.getElementById('tokens').scrollTop") > 0, "the newest token is in sight"
    page.scrub(page.data["tokens"][999]["at_s"] + 1e-7)
    assert page.chips() == 1000


def background(page):
    return page.js("getComputedStyle(document.body).backgroundColor")


def test_both_colour_schemes_follow_the_system_and_the_button(tiny, show):
    page = show(run(tiny))
    light = background(page)
    page.prefer("dark")
    page.wait(lambda: background(page) != light)
    dark = background(page)
    page.click("theme")
    assert background(page) == light, "the button goes before the system"
    page.click("theme")
    assert background(page) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_on_its_ground(tiny, show, scheme):
    page = show(run(tiny))
    page.prefer(scheme)
    page.press("\ue010")
    assert page.low_contrast() == [], "WCAG AA asks for a contrast of 4.5"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_screen_needs_no_sideways_scrolling(tiny, show, width):
    page = show(kinds_of_requests(tiny)["hostile text"])
    page.narrow(width)
    page.press("\ue010")
    page.wait(lambda: page.js("document.getElementById('timeline').viewBox.baseVal.width") < width)
    assert page.js("document.documentElement.scrollWidth") <= width
    shown = page.js(
        "[...document.querySelectorAll('footer > *')].map(e => e.getBoundingClientRect())"
        ".map(box => [box.left, box.right])"
    )
    assert all(left >= 0 and right <= width for left, right in shown), "every control is within reach"


def test_whoever_wants_less_motion_gets_none_but_the_replay_s(tiny, show):
    page = show(run(tiny))
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.scrub((page.data["passes"][0]["start_s"] + page.data["passes"][0]["end_s"]) / 2)
    assert page.js("getComputedStyle(document.querySelector('.slot.writing')).animationName") == "none"


def test_every_control_has_a_name(tiny, show):
    page = show(run(tiny))
    assert page.unnamed_controls() == []


def test_numbers_are_written_as_the_command_line_writes_them(tiny, show):
    page = show(run(tiny))
    counts = [0, 7, 999, 1000, 23_040, 269_000_000, 538_060_032, 1_613_000_000, 52_400_000]
    assert page.js(f"{counts}.map(humanBytes)") == [human_bytes(count) for count in counts]
    times = [0.0, 0.00021, 0.0357, 0.9, 1.239, 93.77]
    assert page.js(f"{times}.map(humanSeconds)") == [human_seconds(seconds) for seconds in times]
