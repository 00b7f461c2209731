"use strict";

// What the reader sees and does. The data is read once; `show` draws everything that changes.

const runs = JSON.parse($("data").textContent).runs.map(makeRun);
const axis = runs.reduce((most, run) => Math.max(most, run.duration), 0); // one time axis for all runs

let run = runs[0];
let view;
let layout;
let colours = readColours();
let marked = {}; // {step, row}: what the figures are about
let kept = false; // whether it stays when the pointer leaves

for (const each of runs) each.axis = axis;

// --- What does not change with the step ---------------------------------------------------------------------

function chooseRun(next) {
  run = next;
  const before = view;
  view = makeView(axis, run.usualStep * 8);
  if (before) view.set(before.from, before.to);
  marked = {};
  kept = false;
  buildAbout();
  buildLessons();
  buildTable();
  $("chart").setAttribute("aria-valuemax", String(Math.max(1, run.count)));
  for (const item of document.querySelectorAll("[data-if]")) {
    item.hidden = !{ again: run.totals.preemptions, cached: run.totals.cached_tokens }[item.dataset.if];
  }
  for (const button of $("runs").children) button.setAttribute("aria-pressed", String(runs[button.dataset.run] === run));
  show();
}

function buildAbout() {
  const { requests, steps, prompt_tokens, generated_tokens, duration_s } = run.totals;
  const name = run.name ? `${run.name}: ` : "";
  $("about").textContent =
    `${name}${counted(requests, "request")} · ${counted(prompt_tokens, "token")} in, ${humanCount(generated_tokens)} out · ` +
    `${counted(steps, "step")} in ${humanSeconds(duration_s)} · ${counted(run.blocks, "block")} of ${counted(run.block_size, "token")}`;
  document.title = run.name ? `Many requests on one time axis: ${run.name}` : "Many requests on one time axis";
}

function buildLessons() {
  const t = run.totals;
  $("lessons").replaceChildren();
  addLesson("--made", "Throughput", t.tokens_per_s === null ? "–" : `${threeDigits(t.tokens_per_s)} tokens/s`,
    t.steps ? `generated; a step computes ${threeDigits(t.tokens_per_step)} tokens of ${threeDigits(t.requests_per_step)} requests on average` : "nothing was computed");
  addLesson("--prompt", "First token after", t.ttft_s === null ? "–" : humanSeconds(t.ttft_s),
    t.ttft_s === null ? "no request got one" : `the median of the requests, from their arrival on; the longest wait was ${humanSeconds(t.slowest_ttft_s)}`);
  addLesson("--kv", "Reserved and empty", t.reserved_waste === null ? "–" : percent(t.reserved_waste),
    `of the KV slots in use, over time; at most ${humanCount(t.most_blocks)} of ${counted(run.blocks, "block")} were in use`);
  const again = t.preemptions ? `${humanCount(t.recomputed_tokens)} of ${counted(t.computed_tokens, "token")}, as requests gave way ${counted(t.preemptions, "time")}` : `no request had to give way; ${counted(t.computed_tokens, "token")} computed`;
  const found = t.cached_tokens ? `; ${humanCount(t.cached_tokens)} more were found in the prefix cache` : "";
  addLesson("--again", "Computed again", t.computed_tokens ? percent(t.recomputed_tokens / t.computed_tokens) : "–", again + found);
}

function addLesson(hue, title, figure, words) {
  const lesson = element("div", "lesson");
  lesson.style.setProperty("--hue", `var(${hue})`);
  lesson.append(element("b", "", title), element("strong", "", figure), element("span", "", words));
  $("lessons").append(lesson);
}

const FIGURES = [
  ["time", (t) => humanSeconds(t.duration_s)],
  ["tokens generated per second", (t) => (t.tokens_per_s === null ? "–" : threeDigits(t.tokens_per_s))],
  ["first token after (median)", (t) => (t.ttft_s === null ? "–" : humanSeconds(t.ttft_s))],
  ["longest wait for a first token", (t) => (t.slowest_ttft_s === null ? "–" : humanSeconds(t.slowest_ttft_s))],
  ["steps", (t) => humanCount(t.steps)],
  ["requests per step", (t) => (t.requests_per_step === null ? "–" : threeDigits(t.requests_per_step))],
  ["reserved and empty", (t) => (t.reserved_waste === null ? "–" : percent(t.reserved_waste))],
  ["tokens computed", (t) => humanCount(t.computed_tokens)],
  ["of them again", (t) => humanCount(t.recomputed_tokens)],
  ["found in the prefix cache", (t) => humanCount(t.cached_tokens)],
  ["scheduling and bookkeeping", (t) => (t.schedule_share === null ? "–" : percent(t.schedule_share))],
];

/** Several runs: their figures beside each other, and a button for each. */
function buildComparison() {
  $("compare").hidden = $("runs").hidden = runs.length < 2;
  const head = element("tr");
  head.append(element("th"), ...runs.map((each) => headCell(each.name, "col")));
  $("comparison").append(head);
  for (const [name, figure] of FIGURES) {
    const row = element("tr");
    row.append(headCell(name, "row"), ...runs.map((each) => element("td", "", figure(each.totals))));
    $("comparison").append(row);
  }
  runs.forEach((each, index) => {
    const button = element("button", "", each.name);
    button.type = "button";
    button.dataset.run = String(index);
    button.addEventListener("click", () => chooseRun(each));
    $("runs").append(button);
  });
}

function headCell(text, scope) {
  const cell = element("th", "", text);
  cell.scope = scope;
  return cell;
}

const COLUMNS = [
  ["arrived", (row) => humanSeconds(row.arrived_s)],
  ["first token after", (row) => (row.first_token_s === null ? "–" : humanSeconds(row.first_token_s - row.arrived_s))],
  ["ended after", (row) => (row.ended_s === null ? "–" : humanSeconds(row.ended_s - row.arrived_s))],
  ["prompt", (row) => humanCount(row.prompt)],
  ["from cache", (row) => humanCount(cachedOf(row))],
  ["generated", (row) => humanCount(row.generated)],
  ["computed again", (row) => humanCount(row.work.reduce((sum, work) => sum + work[AGAIN], 0))],
  ["gave way", (row) => humanCount(row.preemptions.length)],
  ["end", (row) => row.reason || "–"],
];

function cachedOf(row) {
  return row.admissions.reduce((sum, [, cached]) => sum + cached, 0);
}

/** Built when it is opened: hundreds of rows that nobody may want. */
function buildTable() {
  $("requests").replaceChildren();
  if (!$("all").open) return;
  const head = element("tr");
  head.append(headCell("request", "col"), ...COLUMNS.map(([name]) => headCell(name, "col")));
  $("requests").append(head);
  for (const row of run.rows) {
    const line = element("tr");
    const first = element("td");
    const button = element("button");
    button.type = "button";
    button.append(element("bdi", "", nameOf(row)));
    button.title = "Show it in the picture";
    button.addEventListener("click", () => showRequest(row));
    first.append(button);
    line.append(first, ...COLUMNS.map(([, figure]) => element("td", "", figure(row))));
    $("requests").append(line);
  }
}

/** A request's life in sight, and its first step marked. */
function showRequest(row) {
  const end = endOf(row, run);
  const room = (end - row.arrived_s) * 0.05;
  view.set(row.arrived_s - room, end + room);
  mark({ row, step: row.work.length ? row.work[0][STEP] : marked.step }, true);
  $("chart").scrollIntoView({ block: "nearest" });
  $("chart").focus({ preventScroll: true });
}

// --- What changes ---------------------------------------------------------------------------------------------

let waiting = false;

/** Draw once per frame, however much happened. */
function show() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    layout = drawRun($("canvas"), run, view, marked, colours);
    $("overview").hidden = view.isWhole();
    if (!view.isWhole()) drawOverview($("overview"), run, view, colours);
    $("whole").disabled = $("out").disabled = view.isWhole();
  });
}

function mark(next, keep) {
  kept = keep;
  marked = next;
  $("details").classList.toggle("chosen", keep && marked.step !== undefined);
  showDetails();
  show();
}

function showDetails() {
  const { step, row } = marked;
  $("figures").replaceChildren();
  $("events").replaceChildren();
  $("request").hidden = row === undefined;
  if (row !== undefined) showRow(row, step);
  if (step === undefined) {
    $("step-title").textContent = "A step";
    $("step-words").textContent = run.count ? "Point at the picture, tap it, or use its arrow keys: here are the figures of a step." : "There were no steps.";
    $("chart").removeAttribute("aria-valuenow");
    $("chart").setAttribute("aria-valuetext", "no step is chosen");
    return;
  }
  $("step-title").textContent = `Step ${humanCount(step + 1)} of ${humanCount(run.count)}`;
  $("step-words").textContent = `at ${humanSeconds(run.starts[step])}`;
  for (const [name, figure, words] of figuresOf(step)) {
    const item = element("div");
    const value = element("dd", "", figure);
    if (words) value.append(element("small", "", words));
    item.append(element("dt", "", name), value);
    $("figures").append(item);
  }
  for (const words of eventsOf(step)) $("events").append(element("li", "", words));
  $("chart").setAttribute("aria-valuenow", String(step + 1));
  $("chart").setAttribute("aria-valuetext", spokenStep(step));
}

function figuresOf(step) {
  const { schedule_s, forward_s, sample_s, running, waiting: queue, used, held } = run.steps;
  const [prompt, again, decode] = [run.prefill[step], run.again[step], run.decode[step]];
  const kinds = [[decode, "decode"], [prompt, "prefill"], [again, "again"]].filter(([tokens]) => tokens);
  const slots = used[step] * run.block_size;
  return [
    ["took", humanSeconds(run.ends[step] - run.starts[step]), `schedule ${humanSeconds(schedule_s[step])}, pass ${humanSeconds(forward_s[step])}, choose ${humanSeconds(sample_s[step])}`],
    ["tokens computed", humanCount(prompt + again + decode), kinds.map(([tokens, kind]) => `${humanCount(tokens)} ${kind}`).join(", ")],
    ["requests", `${humanCount(running[step])} run`, `${humanCount(queue[step])} wait`],
    ["blocks in use", `${humanCount(used[step])} of ${humanCount(run.blocks)}`, slots ? `${humanCount(held[step])} of ${counted(slots, "slot")} filled, ${percent(1 - held[step] / slots)} empty` : ""],
  ];
}

/** Who came in, gave way or ended, in sentences. */
function eventsOf(step) {
  const [came, found, lost, ended] = [[], [], [], []];
  for (const row of run.rows) {
    for (const [at, cached] of row.admissions) {
      if (at !== step) continue;
      came.push(row);
      if (cached) found.push(`${short(row)} (${counted(cached, "token")})`);
    }
    if (row.preemptions.includes(step)) lost.push(row);
    if (row.ended_s !== null && row.ended_s > run.starts[step] && row.ended_s <= run.ends[step] + 1e-6) ended.push(row);
  }
  return [
    [came.map(short), "admitted"], [found, "prefix found in the cache"], [lost.map(short), "gave way"],
    [ended.map((row) => `${short(row)} (${row.reason})`), "ended"],
  ].filter(([names]) => names.length).map(([names, what]) => `${what}: ${some(names)}`);
}

function short(row) {
  const id = nameOf({ id: row.id, title: "" });
  return id.length > 24 ? `${id.slice(0, 23)}…` : id;
}

function some(names, most = 6) {
  return names.length > most ? `${names.slice(0, most).join(", ")} and ${humanCount(names.length - most)} more` : names.join(", ");
}

function spokenStep(step) {
  const [, tokens, requests, blocks] = figuresOf(step);
  return `Step ${step + 1} of ${run.count}, at ${humanSeconds(run.starts[step])}: ${tokens[1]} tokens (${tokens[2]}), ${requests[1]}, ${requests[2]}, ${blocks[1]} blocks. ${eventsOf(step).join(". ")}`;
}

function showRow(row, step) {
  $("request-title").replaceChildren("Request ", element("bdi", "", nameOf(row)));
  $("request-now").textContent = step === undefined ? "" : stateOf(row, step);
  const parts = [`arrived at ${humanSeconds(row.arrived_s)}`, `${counted(row.prompt, "prompt token")}`];
  if (cachedOf(row)) parts.push(`${humanCount(cachedOf(row))} found in the cache`);
  parts.push(row.first_token_s === null ? "no token" : `first token after ${humanSeconds(row.first_token_s - row.arrived_s)}`);
  parts.push(`${humanCount(row.generated)} of up to ${humanCount(row.max_tokens)} generated`);
  if (row.preemptions.length) parts.push(`gave way ${counted(row.preemptions.length, "time")}`);
  parts.push(row.reason ? `ended after ${humanSeconds(row.ended_s - row.arrived_s)}: ${row.reason}` : "has not ended");
  $("request-words").textContent = `${parts.join("; ")}.`;
}

/** What a request does in a step. */
function stateOf(row, step) {
  const work = workIn(row, step);
  const [starts, ends] = [run.starts[step], run.ends[step]];
  if (row.preemptions.includes(step)) return "In this step it gives its blocks back, and waits again.";
  if (!work) {
    if (row.arrived_s > ends) return "In this step it is not there yet.";
    if (endOf(row, run) <= starts) return "In this step it has ended.";
    const runs_ = row.periods.some((period) => period.kind === "run" && period.from <= starts && period.to >= ends);
    return runs_ ? "In this step it keeps its blocks, and gets no tokens: the budget is used up." : "In this step it waits.";
  }
  const start = positionIn(work, step);
  const kind = kindOf(work, row);
  if (kind === "decode") return `In this step: decode, which gives token ${humanCount(generatedBy(row, step))}.`;
  const which = kind === "again" ? `${humanCount(work[AGAIN])} of them for the second time` : `of its ${counted(row.prompt, "prompt token")}`;
  const gives = work[SAMPLES] ? `; gives token ${humanCount(generatedBy(row, step))}` : "";
  return `In this step: tokens ${humanCount(start)} to ${humanCount(start + work[TOKENS] - 1)}, ${which}${gives}.`;
}

/** Say where we are to those who listen: after keys, not for each move of a mouse. */
function speak() {
  $("spoken").textContent = marked.row === undefined ? "" : `Request ${nameOf(marked.row)}. ${$("request-now").textContent}`;
}

// --- What the reader does -------------------------------------------------------------------------------------

/** What is at a place of the chart. */
function placeAt(event) {
  const box = $("canvas").getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const inRows = y >= layout.rowsTop && y < layout.rowsTop + layout.rows.length * layout.rowHigh;
  const seconds = Math.min(Math.max(layout.seconds(x), view.from), view.to);
  const step = run.stepAt(seconds);
  return { x, seconds, step: step < 0 ? undefined : step, row: inRows ? layout.rowAt(y) : undefined };
}

function moveStep(by) {
  if (!run.count) return;
  const now = marked.step === undefined ? countBelow(run.starts, view.from) - (by > 0 ? 1 : 0) : marked.step;
  toStep(now + by);
}

function toStep(step) {
  if (!run.count) return;
  const next = Math.min(Math.max(0, step), run.count - 1);
  view.reveal(run.starts[next], run.ends[next]);
  mark({ ...marked, step: next }, true);
  speak();
}

function moveRow(by) {
  const rows = layout.rows;
  if (!rows.length) return;
  const place = rows.indexOf(marked.row);
  const next = place < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(0, place + by), rows.length - 1);
  mark({ ...marked, row: rows[next] }, true);
  speak();
}

function zoom(factor, seconds) {
  const middle = marked.step === undefined ? (view.from + view.to) / 2 : Math.min(Math.max(run.starts[marked.step], view.from), view.to);
  view.zoom(factor, seconds === undefined ? middle : seconds);
  show();
}

function wholeRun() {
  view.whole();
  show();
}

const KEYS = {
  ArrowRight: () => moveStep(1),
  ArrowLeft: () => moveStep(-1),
  PageDown: () => moveStep(10),
  PageUp: () => moveStep(-10),
  ArrowDown: () => moveRow(1),
  ArrowUp: () => moveRow(-1),
  Home: () => toStep(0),
  End: () => toStep(run.count - 1),
  "+": () => zoom(1.6),
  "=": () => zoom(1.6),
  "-": () => zoom(1 / 1.6),
  0: wholeRun,
  Escape: () => mark({}, false),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
}

const TAP = 5; // px: a pointer that moved less has pointed, not dragged

/** A mouse points, and drags over what it wants to see more of; a finger taps and pushes, two of them zoom. */
function listenToPointers() {
  const chart = $("chart");
  const down = new Map(); // pointer id -> where it is
  let began;
  const brush = element("i", "brush");

  chart.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    chart.setPointerCapture(event.pointerId);
    down.set(event.pointerId, event.clientX);
    began = { ...placeAt(event), clientX: event.clientX, dragged: down.size > 1 };
  });
  chart.addEventListener("pointermove", (event) => {
    if (!down.has(event.pointerId)) {
      if (event.pointerType === "mouse" && !kept) mark(placeAt(event), false);
      return;
    }
    const before = spread(down);
    const moved = event.clientX - down.get(event.pointerId);
    down.set(event.pointerId, event.clientX);
    if (down.size > 1) {
      const after = spread(down);
      if (before.wide > 10 && after.wide > 10) view.zoom(after.wide / before.wide, layout.seconds(after.middle - chart.getBoundingClientRect().left));
      began.dragged = true;
      show();
    } else if (began.dragged || Math.abs(event.clientX - began.clientX) > TAP) {
      began.dragged = true;
      if (event.pointerType === "mouse") drawBrush(event);
      else if (!view.isWhole()) {
        view.pan(-moved / layout.pixelsPerSecond);
        show();
      }
    }
  });
  chart.addEventListener("pointerup", (event) => {
    if (!down.delete(event.pointerId)) return;
    const place = placeAt(event);
    if (!began.dragged) mark({ step: place.step, row: place.row }, true);
    else if (brush.isConnected) {
      view.set(Math.min(began.seconds, place.seconds), Math.max(began.seconds, place.seconds));
      show();
    }
    brush.remove();
  });
  chart.addEventListener("pointercancel", (event) => {
    down.delete(event.pointerId);
    brush.remove();
  });
  chart.addEventListener("pointerleave", () => {
    if (!kept && !down.size) mark({}, false);
  });
  chart.addEventListener("wheel", onWheel, { passive: false });

  function drawBrush(event) {
    const [from, to] = [began.x, placeAt(event).x].map((x) => Math.max(x, layout.left)).sort((a, b) => a - b);
    brush.style.left = `${from}px`;
    brush.style.width = `${to - from}px`;
    chart.append(brush);
  }
}

function spread(down) {
  const places = [...down.values()];
  const [least, most] = [Math.min(...places), Math.max(...places)];
  return { wide: most - least, middle: (least + most) / 2 };
}

/** With Ctrl, or two fingers on a pad: zoom. Sideways: move. Everything else scrolls the page, as everywhere. */
function onWheel(event) {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.004)), placeAt(event).seconds);
    return;
  }
  const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
  if (view.isWhole() || Math.abs(sideways) <= (event.shiftKey ? 0 : Math.abs(event.deltaY))) return;
  event.preventDefault();
  view.pan(sideways / layout.pixelsPerSecond);
  show();
}

function listenToOverview() {
  const strip = $("overview");
  const move = (event) => {
    const box = strip.getBoundingClientRect();
    const middle = ((event.clientX - box.left) / box.width) * axis;
    view.pan(middle - (view.from + view.to) / 2);
    show();
  };
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    move(event);
  });
  strip.addEventListener("pointermove", (event) => {
    if (strip.hasPointerCapture(event.pointerId)) move(event);
  });
}

function listen() {
  $("chart").addEventListener("keydown", onKey);
  $("in").addEventListener("click", () => zoom(2));
  $("out").addEventListener("click", () => zoom(0.5));
  $("whole").addEventListener("click", wholeRun);
  $("all").addEventListener("toggle", buildTable);
  listenToPointers();
  listenToOverview();
  new ResizeObserver(show).observe($("chart").parentElement);
  const recolour = () => {
    colours = readColours();
    show();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

buildComparison();
listen();
chooseRun(run);
showDetails();
