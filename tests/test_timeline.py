"""The timeline of many requests: the figures of a run, the data of the page, and what a reader sees of it."""

import dataclasses
import functools
import math

import pytest
from engine_logs import mixed_lengths, simulated_log
from tiny import save_tiny_model
from web_pages import HOSTILE, OpenPage, embedded

from minillm import LLM, SamplingParams
from minillm.config import RopeScaling
from minillm.engine.log import ArrivalRecord, PartRecord, StepLog, StepRecord
from minillm.engine.log_totals import by_request, steps_of, totals
from minillm.engine.scheduler import Scheduler
from minillm.engine.static_scheduler import StaticScheduler
from minillm.engine.timeline import MOST_TITLE, Work, timeline_of, work_of, write_timeline
from minillm.errors import InputError

FEW = [(40, 30), (120, 60), (300, 12), (16, 90), (600, 40), (30, 20), (220, 70), (90, 45)]


@functools.cache
def few(**changes) -> StepLog:
    """Eight requests, one after the other, on a pool that is a little too small for them."""
    sizes = {"num_blocks": 40, "max_batch_size": 4, "token_budget": 128, "arrivals_s": 0.15}
    return simulated_log(FEW, **{**sizes, **changes})


def record(started_s, parts=(), *, took=(0.1, 0.7, 0.2), **changes) -> StepRecord:
    """A step by hand: parts are (request, start, tokens, samples)."""
    empty = {"admitted": (), "preempted": (), "finished": (), "arrived": ()}
    counts = {"num_running": len(parts), "num_waiting": 0, "blocks_used": 2, "tokens_held": 6}
    return StepRecord(
        **{
            **dict(zip(("schedule_s", "forward_s", "sample_s"), took, strict=True)),
            **empty,
            **counts,
            "started_s": float(started_s),
            "parts": tuple(PartRecord(*part) for part in parts),
            "blocks_total": 4,
            "block_size": 4,
            **changes,
        }
    )


BY_HAND = [
    # a and b come; a is read whole, b gets what is left of the budget
    record(
        1,
        [("a", 0, 4, True), ("b", 0, 2, False)],
        arrived=(ArrivalRecord("a", 0.5, 4, 3), ArrivalRecord("b", 0.75, 5, 2)),
        admitted=(("a", 0), ("b", 0)),
    ),
    # there are no blocks for both: b gives way
    record(3, [("a", 4, 1, True)], preempted=("b",), blocks_used=4, tokens_held=5, took=(0.25, 1.5, 0.25)),
    record(5, [("a", 5, 1, True)], finished=(("a", "length"),)),
    # of b, two tokens are in the cache now; one that was computed before is not, nor are the last two
    record(6, [("b", 1, 4, True)], admitted=(("b", 1),)),
    record(7, [("b", 5, 1, True)], finished=(("b", "stop"),)),
]


def test_the_figures_of_a_run_by_hand() -> None:
    found = totals(BY_HAND)
    assert (found.requests, found.steps, found.prompt_tokens, found.generated_tokens) == (2, 5, 9, 5)
    assert (found.computed_tokens, found.recomputed_tokens, found.cached_tokens, found.preemptions) == (13, 1, 1, 1)
    assert found.recomputed_share == 1 / 13
    assert found.duration_s == 7.5, "from the first arrival to the last end"
    assert found.tokens_per_s == 5 / 7.5
    assert (found.ttft_s, found.slowest_ttft_s) == ((1.5 + 6.25) / 2, 6.25)
    assert (found.tokens_per_step, found.requests_per_step) == (13 / 5, 6 / 5)
    # four steps of 1 s with 6 of 8 slots filled, one of 2 s with 5 of 16
    assert found.reserved_waste == pytest.approx(1 - (4 * 6 + 2 * 5) / (4 * 8 + 2 * 16))
    assert found.most_blocks == 4
    assert found.schedule_share == pytest.approx((4 * 0.1 + 0.25) / 6)


def test_a_run_in_which_nothing_happened_has_no_figures() -> None:
    found = totals(StepLog())
    assert (found.requests, found.duration_s, found.most_blocks) == (0, 0.0, 0)
    assert {found.tokens_per_s, found.ttft_s, found.reserved_waste, found.schedule_share, found.recomputed_share} == {
        None
    }


@pytest.mark.parametrize("policy", [None, StaticScheduler])
def test_the_figures_are_those_of_the_requests(policy) -> None:
    log = few(**({} if policy is None else {"policy": policy, "num_blocks": 200}))
    found = totals(log)
    assert found.generated_tokens == sum(completion for _, completion in FEW)
    assert found.prompt_tokens == sum(prompt for prompt, _ in FEW)
    needed = sum(prompt + completion - 1 for prompt, completion in FEW)
    assert found.computed_tokens + found.cached_tokens == needed + found.recomputed_tokens + again_from_cache(log)
    assert 0 < found.reserved_waste < 1
    assert (found.preemptions > 0) == (policy is None)


def again_from_cache(log):
    """Tokens that requests which gave way found in the cache at their next admissions: found, and computed before."""
    return sum(cached for request in by_request(log) for _, cached in request.admissions[1:])


def test_static_batches_waste_what_paging_does_not() -> None:
    lengths = mixed_lengths(24, seed=3, longest_prompt=200, longest=80)
    sizes = {"num_blocks": 150, "max_batch_size": 8}
    static, paged = (totals(simulated_log(lengths, policy=policy, **sizes)) for policy in (StaticScheduler, Scheduler))
    assert paged.reserved_waste < 0.1 < 0.5 < static.reserved_waste
    assert paged.tokens_per_s > 1.2 * static.tokens_per_s
    assert paged.requests_per_step > 1.5 * static.requests_per_step


def test_a_request_whose_sampling_failed_generated_nothing_with_its_last_part() -> None:
    arrived = (ArrivalRecord("a", 0.0, 4, 3), ArrivalRecord("b", 0.0, 4, 3))
    parts = [("a", 0, 4, True), ("b", 0, 4, True)]
    log = [
        record(0, parts, arrived=arrived, admitted=(("a", 0), ("b", 0)), finished=(("a", "error"),)),
        record(1, [("b", 4, 1, True)], finished=(("b", "error"),)),
    ]
    one, other = by_request(log)
    assert (one.num_generated, one.ttft_s, other.num_generated, other.ttft_s) == (0, None, 1, 1.0)


def test_who_gives_way_twice_computes_again_what_was_ever_computed() -> None:
    arrived = (ArrivalRecord("a", 0.0, 8, 3),)
    log = [
        record(0, [("a", 0, 8, True)], arrived=arrived, admitted=(("a", 0),)),
        record(1, preempted=("a",)),
        record(2, [("a", 0, 4, False)], admitted=(("a", 0),)),
        record(3, preempted=("a",)),
        record(4, [("a", 2, 5, False)], admitted=(("a", 2),)),
        record(5, [("a", 7, 2, True)]),
    ]
    assert by_request(log)[0].computed_again() == [0, 4, 5, 1]
    assert totals(log).recomputed_tokens == 10


def test_an_id_may_come_again() -> None:
    again = ArrivalRecord("a", 2.5, 2, 1)
    log = [
        record(1, [("a", 0, 4, False)], arrived=(ArrivalRecord("a", 0.5, 9, 3),), admitted=(("a", 0),)),
        # the first was ended between the steps, and the second ends in its only one
        record(
            3, [("a", 0, 2, True)], finished=(("a", "abort"), ("a", "length")), arrived=(again,), admitted=(("a", 0),)
        ),
    ]
    first, second = by_request(log)
    assert (first.reason, len(first.parts), first.prompt_tokens) == ("abort", 1, 9)
    assert (second.reason, len(second.parts), second.ttft_s, second.ended_s) == ("length", 1, 1.5, 4.0)


def test_who_was_ended_between_two_steps_ended_before_the_second() -> None:
    arrived = (ArrivalRecord("a", 0.0, 4, 3), ArrivalRecord("b", 0.0, 4, 3))
    log = [
        record(0, [("a", 0, 4, True)], arrived=arrived, admitted=(("a", 0),)),
        record(2, [("a", 4, 1, True)], finished=(("b", "abort"),)),
        record(3.5, took=(0.0, 0.0, 0.0), finished=(("a", "stop"),)),
    ]
    one, other = by_request(log)
    assert (one.ended_s, one.reason, other.ended_s, other.reason) == (3.5, "stop", 2.0, "abort")
    assert len(steps_of(log)) == totals(log).steps == 2, "the end from outside is no step"


def test_a_log_without_its_beginning_is_refused() -> None:
    with pytest.raises(InputError, match="when request 'b' came in: give it whole"):
        by_request(BY_HAND[1:])


# --- The data of the page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [0, 64])
def test_the_pieces_of_work_are_the_parts_of_the_log(shared) -> None:
    log = simulated_log(mixed_lengths(12, seed=6, longest_prompt=300, longest=40), shared=shared, num_blocks=30)
    for request in by_request(log):
        pieces, parts = work_of(request), []
        for work in pieces:
            for turn in range(work.count):
                start = work.start + turn * work.tokens
                parts.append((work.step + turn, PartRecord(request.request_id, start, work.tokens, work.samples)))
        assert parts == request.parts
        assert sum(work.again * work.count for work in pieces) == sum(request.computed_again())
        stops = len(request.preemptions) + 1
        assert len([work for work in pieces if work.start >= request.prompt_tokens]) <= 2 * stops, "decode is one piece"


def test_the_last_token_of_a_prompt_is_not_part_of_decode() -> None:
    """The rest of the prompt was in the cache: it looks like decode, a token that gives one, and is none."""
    log = [record(0, [("a", 7, 1, True)], arrived=(ArrivalRecord("a", 0.0, 8, 3),), admitted=(("a", 7),))]
    log += [record(n, [("a", 7 + n, 1, True)]) for n in (1, 2)]
    assert work_of(by_request(log)[0]) == [Work(0, 1, 7, 1, 0, True), Work(1, 2, 8, 1, 0, True)]


def test_times_count_from_the_first_arrival() -> None:
    shown = timeline_of(BY_HAND, {"b": "the second"})
    assert shown.steps.start_s == (0.5, 2.5, 4.5, 5.5, 6.5)
    assert [(row.id, row.title, row.arrived_s, row.ended_s) for row in shown.requests] == [
        ("a", "", 0.0, 5.5),
        ("b", "the second", 0.25, 7.5),
    ]
    assert shown.requests[1].preemptions == (1,)
    assert shown.requests[1].admissions == ((0, 0), (3, 1))


def test_a_run_that_has_not_ended_has_a_timeline() -> None:
    shown = timeline_of(BY_HAND[:4], {})
    assert (shown.requests[1].ended_s, shown.requests[1].reason) == (None, None)
    assert shown.totals.generated_tokens == 4


def page_of(path, *args, **kwargs):
    write_timeline(path, *args, **kwargs)
    return path.read_text(encoding="utf-8")


def test_ids_and_titles_cannot_end_the_script_that_carries_them(tmp_path) -> None:
    log = [dataclasses.replace(BY_HAND[0], arrived=(), admitted=(), parts=())]
    log[0] = dataclasses.replace(log[0], arrived=(ArrivalRecord(HOSTILE, 0.0, 1, 1),))
    html = page_of(tmp_path / "out.html", log, {HOSTILE: HOSTILE})
    (row,) = embedded(html)["runs"][0]["requests"]
    assert (row["id"], row["title"]) == (HOSTILE, HOSTILE)
    assert html.count("</script>") == 2, "one for the data, one for the scripts"


def test_long_titles_and_ids_are_cut(tmp_path) -> None:
    log = [dataclasses.replace(BY_HAND[0], arrived=(ArrivalRecord("i" * 5000, 0.0, 1, 1),), admitted=(), parts=())]
    (row,) = timeline_of(log, {"i" * 5000: "t" * 5000}).requests
    assert (len(row.id), len(row.title), row.title[-1]) == (MOST_TITLE, MOST_TITLE, "…")


def test_a_long_run_is_a_light_page(tmp_path) -> None:
    names = [str(number) for number in range(20)]
    arrived = tuple(ArrivalRecord(name, 0.0, 1, 300) for name in names)
    log = [record(0, arrived=arrived, admitted=tuple((name, 0) for name in names))]
    log += [record(n, [(name, n, 1, True) for name in names]) for n in range(1, 300)]
    light = page_of(tmp_path / "light.html", log[:2])
    assert len(page_of(tmp_path / "out.html", log)) < len(light) + 100 * 300, "100 characters per step, not per part"


def test_the_page_names_no_other_place(tmp_path) -> None:
    html = page_of(tmp_path / "out.html", BY_HAND)
    assert "http:" not in html
    assert "https:" not in html
    assert "url(" not in html


def test_a_place_that_cannot_be_written_is_said_in_one_sentence(tmp_path) -> None:
    with pytest.raises(InputError, match=r"the page cannot be written to .*directory"):
        write_timeline(str(tmp_path / "no" / "out.html"), BY_HAND)


def test_no_run_at_all_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="there is no run to show"):
        write_timeline(tmp_path / "out.html", {})


# --- Through LLM.generate -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=96, num_hidden_layers=1)
    return LLM(directory, device="cpu", dtype="float32")


def test_a_list_of_prompts_leaves_a_page(llm, tmp_path) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    prompts = ["the cat sat", HOSTILE[:30], "the dog"]
    file = tmp_path / "out.html"
    completions = llm.generate(prompts, params, timeline=str(file))
    assert [one.token_ids for one in completions] == [one.token_ids for one in llm.generate(prompts, params)]
    (run,) = embedded(file.read_text(encoding="utf-8"))["runs"]
    assert [row["generated"] for row in run["requests"]] == [5, 5, 5]
    assert [row["prompt"] for row in run["requests"]] == [len(one.prompt_token_ids) for one in completions]
    assert run["requests"][0]["title"] == "the cat sat"
    assert list(tmp_path.iterdir()) == [file]
    llm.generate([], timeline=file)
    assert embedded(file.read_text(encoding="utf-8"))["runs"][0]["requests"] == []


def test_a_timeline_that_will_not_be_is_refused_before_anything_runs(llm, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(LLM, "start", lambda *args, **kwargs: pytest.fail("it runs"))
    monkeypatch.setattr("minillm.llm.generate_many", lambda *args, **kwargs: pytest.fail("it runs"))
    with pytest.raises(InputError, match="give a list of prompts"):
        llm.generate("one", timeline=tmp_path / "out.html")
    with pytest.raises(InputError, match="cannot be written"):
        llm.generate(["one"], timeline=tmp_path)
    scaling = RopeScaling("dynamic", 2.0, original_max_position_embeddings=48)
    monkeypatch.setattr(llm, "config", dataclasses.replace(llm.config, rope_scaling=scaling))
    with pytest.raises(InputError, match="run one by one"):
        llm.generate(["one"], timeline=tmp_path / "out.html")
    assert list(tmp_path.iterdir()) == []


# --- The page, in a browser ---------------------------------------------------------------------------------


class Page(OpenPage):
    """A timeline, open in the browser."""

    def settle(self):
        """Until what was asked for is drawn."""
        self.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def do(self, script):
        self.browser.execute_script(script)
        self.settle()

    def key(self, *keys):
        self.browser.find_element("id", "chart").send_keys(*keys)
        self.settle()

    def mouse(self):
        from selenium.webdriver import ActionChains

        return ActionChains(self.browser, duration=20)

    def at(self, x, y, action):
        """Move the mouse to a place of the picture, in its px, and do something there."""
        canvas = self.browser.find_element("id", "canvas")
        left, top = self.js("[document.getElementById('canvas').clientWidth, layout.height]")
        mouse = self.mouse().move_to_element_with_offset(canvas, math.floor(x - left / 2), math.floor(y - top / 2))
        action(mouse).perform()
        self.settle()

    def figures(self):
        """What the figures of the step say, by their names."""
        pairs = "[...document.querySelectorAll('#figures div')].map(e => [...e.children].map(c => c.textContent))"
        return dict(self.js(pairs))

    def window(self):
        return self.js("[view.from, view.to]")


@pytest.fixture
def show(browser, tmp_path):
    """Write a timeline and open it."""

    def opened(log, titles=None):
        file = tmp_path / "out.html"
        write_timeline(file, log, titles)
        page = Page(browser, file)
        page.settle()
        return page

    return opened


@functools.cache
def with_prefixes() -> StepLog:
    """Requests that begin alike, on a pool that is too small for them."""
    return simulated_log(mixed_lengths(16, seed=1, longest_prompt=400, longest=60), shared=64, num_blocks=40)


def runs_of_all_kinds():
    hostile = [dataclasses.replace(BY_HAND[0], arrived=(ArrivalRecord(HOSTILE, 0.0, 1, 1),), admitted=(), parts=())]
    return {
        "few": few(),
        "prefixes": with_prefixes(),
        "static": few(policy=StaticScheduler, num_blocks=200),
        "no steps": StepLog(),
        "not ended": BY_HAND[:2],
        "by hand": BY_HAND,
        "hostile": hostile,
        "several": {"static": few(policy=StaticScheduler, num_blocks=200), HOSTILE: few()},
    }


def test_every_kind_of_run_loads_without_a_request_or_an_error(show) -> None:
    for name, log in runs_of_all_kinds().items():
        page = show(log, {HOSTILE: HOSTILE, "0": HOSTILE})
        page.key("\ue014", "\ue015", "+", "+", "\ue014", "-", "\ue010", "0")  # right, down, zoom, End
        page.click("all")
        page.settle()
        assert page.js("document.title").startswith("Many requests on one time axis"), name
        assert page.complaints() == [], name
        assert page.addresses() == {page.file.as_uri()}, name
        assert page.unnamed_controls() == [], name


COLOURS = """
const context = $("canvas").getContext("2d");
const fine = window.devicePixelRatio;
const probe = document.createElement("canvas").getContext("2d");
const colourAt = (from, x, y) => [...from.getImageData(x, y, 1, 1).data].join();
const rgb = (colour) => {
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return colourAt(probe, 0, 0);
};
const wrong = []; let tried = 0;
layout.rows.forEach((row, place) => {
  const y = layout.rowsTop + (place + 0.6) * layout.rowHigh;
  for (const work of row.work) {
    const [left, right] = [layout.x(run.starts[work[STEP]]), layout.x(run.ends[work[STEP] + work[COUNT] - 1])];
    if (right - left < 4 || left < layout.left || right > layout.width) continue;
    tried += 1;
    const found = colourAt(context, Math.round(((left + right) / 2) * fine), Math.round(y * fine));
    const wanted = rgb(colours[kindOf(work, row)]);
    if (found !== wanted) wrong.push([row.id, work, found, wanted]);
  }
});
return [tried, wrong];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_piece_of_work_is_drawn_in_the_colour_of_its_kind(show, scheme) -> None:
    page = show(few())
    page.prefer(scheme)
    page.settle()
    tried, wrong = page.browser.execute_script(COLOURS)
    assert wrong == []
    assert tried > 15
    kinds = page.js("[...new Set(run.rows.flatMap(row => row.work.map(work => kindOf(work, row))))].sort()")
    assert kinds == ["again", "decode", "prefill"], "all kinds are there to be tried"


def test_a_step_s_figures_are_those_of_its_record(show) -> None:
    log = few()
    page = show(log)
    for step in (0, 17, 90, len(log) - 1):
        page.do(f"mark({{step: {step}}}, true)")
        found, one = page.figures(), log[step]
        assert found["requests"] == f"{one.num_running} run{one.num_waiting} wait"
        filled = f"{one.tokens_held} of {one.blocks_used * 16} slots filled"
        assert found["blocks in use"].startswith(f"{one.blocks_used} of 40{filled}"), found
        assert found["tokens computed"].startswith(str(one.num_tokens))
        assert page.text("step-title") == f"Step {step + 1} of {len(log)}"
        told = page.text("events")
        assert ("gave way" in told) == bool(one.preempted)
        assert ("admitted" in told) == bool(one.admitted)
        for name, reason in one.finished:
            assert f"{name} ({reason})" in told


def test_what_a_request_did_in_each_step_is_what_the_log_says(show) -> None:
    log = simulated_log(mixed_lengths(12, seed=2, longest_prompt=300, longest=40), num_blocks=40)
    assert any(record.preempted for record in log)
    page = show(log)
    found = page.js(
        "run.starts.map((_, step) => run.rows.filter(row => workIn(row, step))"
        ".map(row => [row.id, positionIn(workIn(row, step), step)]))"
    )
    arrival = {one.request_id: number for number, one in enumerate(one for record in log for one in record.arrived)}
    for step, one in enumerate(log):
        parts = sorted(((part.request_id, part.start) for part in one.parts), key=lambda part: arrival[part[0]])
        assert [tuple(part) for part in found[step]] == parts
    generated = {}
    told = page.js(
        "run.starts.map((_, step) => Object.fromEntries(run.rows.map(row => [row.id, generatedBy(row, step)])))"
    )
    for step, one in enumerate(log):
        for part in one.parts:
            generated[part.request_id] = generated.get(part.request_id, 0) + part.samples
        assert {name: count for name, count in told[step].items() if count} == {n: c for n, c in generated.items() if c}
    states = page.js("run.starts.map((_, step) => run.rows.map(row => stateOf(row, step)))")
    gave_way = [
        (step, row) for step, rows in enumerate(states) for row, state in enumerate(rows) if "gives its" in state
    ]
    assert gave_way == [(step, arrival[name]) for step, one in enumerate(log) for name in one.preempted]


def test_the_mouse_shows_the_step_and_the_request_under_it_and_a_click_keeps_them(show) -> None:
    page = show(few(), {"3": "the fourth"})
    x, y = page.js("[layout.x((run.starts[40] + run.ends[40]) / 2), layout.rowsTop + 3.5 * layout.rowHigh]")
    page.at(x, y, lambda mouse: mouse)
    step = page.js("marked.step")
    assert abs(step - 40) <= 1, "a px is about a step"
    assert page.text("step-title") == f"Step {step + 1} of {page.js('run.count')}"
    assert page.text("request-title") == "Request 3 · the fourth"
    page.at(5, page.js("layout.height") + 60, lambda mouse: mouse)
    assert page.text("step-title") == "A step", "nothing is kept"
    page.at(x, y, lambda mouse: mouse.click())
    page.at(x + 50, y, lambda mouse: mouse)
    assert page.js("marked.step") == step
    page.key("\ue00c")  # Escape
    assert page.js("marked.step === undefined && marked.row === undefined")


def test_the_keys_go_through_steps_and_requests_and_say_where_they_are(show) -> None:
    page = show(few())
    chart = page.browser.find_element("id", "chart")
    assert (chart.aria_role, chart.accessible_name) == ("slider", "Step of the run")
    page.key("\ue014", "\ue014", "\ue014")  # right
    assert page.js("marked.step") == 2
    assert chart.get_attribute("aria-valuenow") == "3"
    assert chart.get_attribute("aria-valuetext").startswith("Step 3 of")
    page.key("\ue012", "\ue00f")  # left, page down
    assert page.js("marked.step") == 11
    page.key("\ue015", "\ue015")  # down
    assert page.js("marked.row.id") == "1"
    assert page.text("spoken").startswith("Request 1.")
    page.key("\ue010")  # End
    assert page.js("marked.step") == page.js("run.count") - 1 == int(chart.get_attribute("aria-valuemax")) - 1
    page.key("+", "+", "\ue011")  # Home, when the window is elsewhere
    start, end = page.window()
    assert start == 0 < end < page.js("run.duration"), "the window goes along"
    page.key("0")
    assert page.js("view.isWhole()")


def test_dragging_zooms_into_what_was_dragged_over_and_the_strip_moves_it(show) -> None:
    page = show(few())
    x = [page.js(f"layout.x({share} * run.duration)") for share in (0.25, 0.5)]
    page.at(x[0], 60, lambda mouse: mouse.click_and_hold().move_by_offset(math.floor(x[1] - x[0]), 30).release())
    duration = page.js("run.duration")
    assert page.window() == pytest.approx([0.25 * duration, 0.5 * duration], abs=0.01 * duration)
    assert not page.js("kept"), "a drag is no click"
    strip = page.browser.find_element("id", "overview")
    page.mouse().move_to_element_with_offset(strip, 100, 0).click().perform()
    page.settle()
    middle = page.js("0.5 + 100 / document.getElementById('overview').clientWidth") * duration
    assert sum(page.window()) / 2 == pytest.approx(middle, abs=0.01 * duration)
    page.click("whole")
    page.settle()
    assert page.js("view.isWhole()")
    assert not strip.is_displayed()
    page.click("in")
    page.settle()
    start, end = page.window()
    assert end - start == pytest.approx(duration / 2)


def test_the_wheel_zooms_with_ctrl_and_else_scrolls_the_page(show) -> None:
    page = show(few())
    wheel = (
        "$('chart').dispatchEvent(new WheelEvent('wheel',"
        " {bubbles: true, cancelable: true, clientX: 700, deltaY: %d, ctrlKey: %s}))"
    )
    assert page.js(wheel % (-200, "false")), "the page's own"
    assert page.js("view.isWhole()")
    seconds = page.js("layout.seconds(700 - $('canvas').getBoundingClientRect().left)")
    assert not page.js(wheel % (-200, "true"))
    page.settle()
    assert not page.js("view.isWhole()")
    assert page.js("layout.seconds(700 - $('canvas').getBoundingClientRect().left)") == pytest.approx(seconds)


def test_two_fingers_zoom_one_pushes_and_a_tap_shows_a_step(show) -> None:
    page = show(few())
    page.narrow(390)
    page.wait(lambda: page.js("layout && layout.width") < 390)
    touch = (
        "const send = (type, id, x, y) => $('chart').dispatchEvent(new PointerEvent(type,"
        " {bubbles: true, pointerId: id, pointerType: 'touch', clientX: x, clientY: y}));"
        "$('chart').setPointerCapture = () => {};"
        "const top = $('canvas').getBoundingClientRect().top + layout.rowsTop + 10;"
    )
    page.do(touch + "send('pointerdown', 7, 150, top); send('pointerup', 7, 151, top)")
    assert page.js("marked.step") > 0
    assert page.js("marked.row.id") == "0"
    assert "chosen" in page.browser.find_element("id", "details").get_attribute("class")
    step = page.js("marked.step")
    page.do(
        touch + "send('pointerdown', 7, 150, top); send('pointerdown', 8, 200, top);"
        "send('pointermove', 7, 100, top); send('pointermove', 8, 250, top);"
        "send('pointerup', 7, 100, top); send('pointerup', 8, 250, top)"
    )
    start, end = page.window()
    assert end - start == pytest.approx(page.js("run.duration") / 3)
    page.do(
        touch + "send('pointerdown', 7, 150, top); send('pointermove', 7, 130, top); send('pointerup', 7, 130, top)"
    )
    assert page.window()[0] > start, "pushed to the left, later times are seen"
    assert page.js("marked.step") == step, "neither is a tap"


def test_hundreds_of_requests_stay_readable(show) -> None:
    log = simulated_log(mixed_lengths(200, seed=5, longest_prompt=20, longest=14), num_blocks=100)
    page = show(log)
    assert page.js("layout.rows.length") == 200, "all are in sight"
    assert page.js("layout.height") < 800
    assert page.js("document.querySelectorAll('*').length") < 200, "drawn, not built"
    page.do(f"view.set({log[50].started_s}, {log[58].started_s}); show()")
    assert 8 <= page.js("layout.rows.length") <= 60
    assert page.js("layout.rowHigh") > 6
    ran = {part.request_id for record in log[50:58] for part in record.parts}
    assert ran <= set(page.js("layout.rows.map(row => row.id)")), "whoever runs at this time is a row"


def test_all_requests_are_in_a_table_and_lead_to_the_picture(show) -> None:
    log = few()
    page = show(log)
    page.browser.find_element("css selector", "#all summary").click()
    page.wait(lambda: page.js("document.querySelectorAll('#requests tr').length") == 9)
    cells = page.js("[...document.querySelectorAll('#requests tr')].map(r => [...r.children].map(c => c.textContent))")
    for row, request in zip(cells[1:], by_request(log), strict=True):
        assert row[0] == request.request_id
        assert row[4:] == [
            str(request.prompt_tokens),
            str(sum(cached for _, cached in request.admissions)),
            str(request.num_generated),
            str(sum(request.computed_again())),
            str(len(request.preemptions)),
            request.reason,
        ]
    page.browser.find_elements("css selector", "#requests button")[6].click()
    page.settle()
    assert page.js("marked.row.id") == "6"
    start, end = page.window()
    row = by_request(log)[6]
    assert start <= row.arrived_s < row.ended_s <= end + 1e-6


def test_several_runs_are_compared_on_one_time_axis(show) -> None:
    static, paged = few(policy=StaticScheduler, num_blocks=200), few(num_blocks=200)
    page = show({"static": static, "continuous": paged})
    assert page.js("document.querySelectorAll('#comparison tr:first-child th').length") == 3
    longest = max(static[-1].ended_s, paged[-1].ended_s)
    for name, log in (("continuous", paged), ("static", static)):
        page.browser.find_element("xpath", f"//div[@id='runs']/button[.='{name}']").click()
        page.settle()
        assert page.text("about").startswith(f"{name}: ")
        assert page.js("run.count") == len(log)
        assert page.window() == pytest.approx([0, longest])
    pressed = page.js("[...document.querySelectorAll('#runs button')].map(b => b.getAttribute('aria-pressed'))")
    assert pressed == ["true", "false"]
    alone = show(paged)
    assert not alone.browser.find_element("id", "compare").is_displayed()


def test_the_cards_say_what_was_measured(show) -> None:
    log = with_prefixes()
    found, page = totals(log), show(log)
    words = page.text("lessons")
    assert f"{found.recomputed_tokens:,} of {found.computed_tokens:,} tokens" in words
    assert f"{found.cached_tokens:,} more were found in the prefix cache" in words
    assert f"{found.reserved_waste * 100:.1f} %" in words
    assert f"{found.tokens_per_s:.0f} tokens/s" in words


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_on_its_ground(show, scheme) -> None:
    page = show({"static": few(policy=StaticScheduler, num_blocks=200), "continuous": few()})
    page.prefer(scheme)
    page.do("mark({step: 90, row: run.rows[5]}, true); $('all').open = true")
    assert page.low_contrast() == [], "WCAG AA asks for a contrast of 4.5"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_screen_needs_no_sideways_scrolling(show, width) -> None:
    page = show({"static": few(), "continuous": few()}, {"5": HOSTILE, "4": "w" * 500})
    page.narrow(width)
    page.do("mark({step: 90, row: run.rows[4]}, true); $('all').open = true")
    page.wait(lambda: page.js("layout.width") < width)
    assert page.js("document.documentElement.scrollWidth") <= width
