"use strict";

// The picture: rows of requests above; below, on the same time axis, the tokens of each step, the blocks and the queue.

const LANES = [
  { name: "tokens", high: 54 },
  { name: "blocks", high: 72 },
  { name: "queue", high: 40 },
];
const LABEL = 21;
const MARKS = 8; // above the blocks: where requests gave way
const AXIS = 24;
const READABLE_ROW = 12; // px: a row of this height can carry its name
const SINGLE_STEP = 4; // px: from here on, steps are drawn one by one

/** Where everything is, for a picture `width` px wide: the rows in sight, their height, and each lane's top. */
function layOut(run, view, width) {
  const narrow = width < 640;
  const left = narrow ? 0 : 148;
  const most = narrow ? 300 : 400;
  const rows = rowsInView(run, view, Math.floor(most / READABLE_ROW));
  const fitting = Math.min(run.rows.length, Math.floor(most / READABLE_ROW));
  // One height for the whole run: what is below must not jump while the reader moves in time.
  const rowsHigh = run.rows.length > fitting ? most : Math.max(96, Math.min(most, run.rows.length * 26));
  const rowHigh = Math.min(26, rowsHigh / Math.max(1, rows.length));
  let top = LABEL + rowsHigh;
  const lanes = {};
  for (const { name, high } of LANES) {
    top += name === "blocks" ? LABEL + MARKS : LABEL;
    lanes[name] = { top, high };
    top += high;
  }
  const scale = (width - left) / (view.to - view.from);
  const fine = window.devicePixelRatio || 1;
  const x = (seconds) => left + (seconds - view.from) * scale;
  return {
    width, left, rows, rowHigh, rowsHigh, lanes, narrow,
    rowsTop: LABEL,
    bottom: top,
    height: top + AXIS,
    pixelsPerSecond: scale,
    x,
    sharp: (seconds) => Math.round(x(seconds) * fine) / fine, // on a pixel of the screen: no seams between neighbours
    seconds: (x) => view.from + (x - left) / scale,
    rowAt: (y) => rows[Math.floor((y - LABEL) / rowHigh)],
  };
}

/** Draw a run onto the canvas. `marked`: {step, row}, each or both may be missing. Returns the layout. */
function drawRun(canvas, run, view, marked, colours) {
  const layout = layOut(run, view, canvas.clientWidth || 600);
  const context = sized(canvas, layout.width, layout.height);
  const [first, last] = stepsInView(run, view);
  const painter = { run, view, layout, context, colours, first, last };
  context.save();
  context.beginPath();
  context.rect(layout.left, 0, layout.width - layout.left, layout.height);
  context.clip();
  drawGrid(painter);
  layout.rows.forEach((row, place) => drawRow(painter, row, layout.rowsTop + place * layout.rowHigh));
  drawTokens(painter);
  drawBlocks(painter);
  drawQueue(painter);
  drawMark(painter, marked);
  context.restore();
  drawLabels(painter, marked);
  return layout;
}

/** A canvas of so many px, as fine as the screen is. */
function sized(canvas, width, height) {
  const fine = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * fine);
  canvas.height = Math.round(height * fine);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(fine, fine);
  return context;
}

/** The steps of which something can be seen: from the first up to, and without, the last. */
function stepsInView(run, view) {
  return [countBelow(run.ends, view.from), countUpTo(run.starts, view.to)];
}

// --- Rows ---------------------------------------------------------------------------------------------------

function drawRow({ run, view, layout, context, colours, first, last }, row, top) {
  const { x, rowHigh: high } = layout;
  const bar = high >= 5 ? high - Math.min(4, high * 0.25) : high >= 2.5 ? high - 0.5 : high;
  const middle = top + bar / 2;
  for (const period of row.periods) {
    if (period.to < view.from || period.from > view.to) continue;
    const [left, right] = [x(period.from), x(period.to)];
    if (period.kind === "wait") {
      context.fillStyle = colours.wait;
      const thick = bar < 3 ? bar * 0.4 : Math.max(1, Math.min(3, bar * 0.3));
      context.fillRect(left, middle - thick / 2, right - left, thick);
    } else {
      context.fillStyle = colours.idle;
      context.fillRect(left, top, Math.max(1, right - left), bar);
    }
  }
  for (const work of row.work) {
    const end = work[STEP] + work[COUNT];
    if (end <= first || work[STEP] >= last) continue;
    context.fillStyle = colours[kindOf(work, row)];
    fillSteps(context, run, layout, Math.max(first, work[STEP]), Math.min(last, end), top, bar);
  }
  for (const period of row.periods) {
    if (!period.cached || period.from < view.from || period.from > view.to) continue;
    const wide = Math.max(3, Math.min(9, bar));
    context.fillStyle = bar < 5 ? colours.prefill : colours.cached;
    context.fillRect(x(period.from) - wide, top, wide, bar);
  }
  for (const step of row.preemptions) drawGaveWay(context, colours, x(run.starts[step]), top, bar);
  if (row.ended_s !== null && bar >= 4) drawEnd(context, colours, row, x(row.ended_s), top, bar);
}

/** Steps as one bar each where there is room for it, with a hair between them; else as one bar for all. */
function fillSteps(context, run, { sharp, pixelsPerSecond }, from, to, top, high) {
  if (run.usualStep * pixelsPerSecond < SINGLE_STEP && to - from > 1) {
    const left = sharp(run.starts[from]);
    context.fillRect(left, top, Math.max(0.75, sharp(run.ends[to - 1]) - left), high);
    return;
  }
  for (let step = from; step < to; step += 1) {
    const begin = sharp(run.starts[step]);
    const wide = sharp(run.ends[step]) - begin;
    context.fillRect(begin, top, Math.max(0.75, wide >= SINGLE_STEP ? wide - 1 : wide), high);
  }
}

/** Here a request lost its blocks: a mark that points down. */
function drawGaveWay(context, colours, at, top, high) {
  const size = Math.max(3, Math.min(6, high * 0.6));
  context.fillStyle = colours.again;
  context.beginPath();
  context.moveTo(at - size, top);
  context.lineTo(at + size, top);
  context.lineTo(at, top + Math.max(3, Math.min(high, size * 1.6)));
  context.fill();
}

/** A full stop for an end as wished; a cross for one from outside, or in an error. */
function drawEnd(context, colours, row, at, top, high) {
  context.fillStyle = context.strokeStyle = colours.ink;
  const asWished = row.reason === "stop" || row.reason === "length";
  if (asWished) {
    context.fillRect(at - 0.5, top - 0.5, 2, high + 1);
    return;
  }
  const [size, middle] = [Math.min(4, high / 2), top + high / 2];
  context.lineWidth = 1.5;
  context.beginPath();
  for (const sign of [-1, 1]) {
    context.moveTo(at - size, middle - sign * size);
    context.lineTo(at + size, middle + sign * size);
  }
  context.stroke();
}

// --- Lanes ---------------------------------------------------------------------------------------------------

/** Per step a column: tokens of decode, of prompts, of what is computed once more, one on top of the other. */
function drawTokens({ run, layout, context, colours, first, last }) {
  const { top, high } = layout.lanes.tokens;
  const most = run.mostTokens;
  forEachColumn(run, layout, first, last, (left, wide, from, to) => {
    let bottom = top + high;
    const step = largestAt(run.tokens, from, to);
    for (const kind of ["decode", "prefill", "again"]) {
      const tokens = run[kind][step];
      if (!tokens) continue;
      const column = Math.max(1.5, (tokens / most) * high);
      context.fillStyle = colours[kind];
      context.fillRect(left, bottom - column, wide, column);
      bottom -= column;
    }
  });
}

/** Slots that hold a token, and above them those that are reserved and empty, up to the blocks in use. */
function drawBlocks({ run, layout, context, colours, first, last }) {
  const { top, high } = layout.lanes.blocks;
  const most = run.blocksShown;
  forEachColumn(run, layout, first, last, (left, wide, from, to, until) => {
    const step = largestAt(run.steps.used, from, to);
    const used = (run.steps.used[step] / most) * high;
    const held = (run.steps.held[step] / run.block_size / most) * high;
    context.fillStyle = colours.reserved;
    context.fillRect(left, top + high - used, until - left, used);
    context.fillStyle = colours.held;
    context.fillRect(left, top + high - held, until - left, held);
  });
  for (let step = first; step < last; step += 1) {
    if (run.gaveWay[step]) drawGaveWay(context, colours, layout.x(run.starts[step]), top - MARKS, MARKS - 1);
  }
}

/** Requests that run, and on top of them those that wait. */
function drawQueue({ run, layout, context, colours, first, last }) {
  const { top, high } = layout.lanes.queue;
  const most = run.mostRequests;
  forEachColumn(run, layout, first, last, (left, wide, from, to, until) => {
    const step = largestAt(run.present, from, to);
    const running = (run.steps.running[step] / most) * high;
    const waiting = (run.steps.waiting[step] / most) * high;
    context.fillStyle = colours.quiet;
    context.fillRect(left, top + high - running, until - left, running);
    context.fillStyle = colours.wait;
    context.fillRect(left, top + high - running - waiting, until - left, waiting);
  });
}

/**
 * Steps as columns: paint(left, wide, from, to, until). Steps that share a pixel are one column, from `from` up to `to`.
 *
 * `until` is where the next column begins: what lasts is drawn up to there.
 */
function forEachColumn(run, { sharp }, first, last, paint) {
  for (let from = first; from < last; ) {
    const left = sharp(run.starts[from]);
    let to = from + 1;
    while (to < last && sharp(run.starts[to]) - left < 1) to += 1;
    const end = sharp(run.ends[to - 1]);
    const until = Math.max(end, to < run.count ? sharp(run.starts[to]) : end);
    const wide = Math.max(1, end - left - (end - left > 4 ? 1 : 0));
    paint(left, wide, from, to, Math.max(until, left + 1));
    from = to;
  }
}

/** Where, from `from` up to and without `to`, the largest number is. */
function largestAt(numbers, from, to) {
  let place = from;
  for (let i = from + 1; i < to; i += 1) if (numbers[i] > numbers[place]) place = i;
  return place;
}

// --- Around it ------------------------------------------------------------------------------------------------

function drawGrid({ run, view, layout, context, colours }) {
  context.fillStyle = colours.line;
  for (const { top, high } of Object.values(layout.lanes)) context.fillRect(layout.left, top + high, layout.width, 1);
  const step = roundStep((view.to - view.from) / Math.max(2, Math.floor((layout.width - layout.left) / 110)));
  if (!(step > 0)) return;
  context.font = "12px system-ui, sans-serif";
  for (let tick = Math.ceil(view.from / step); tick * step <= view.to; tick += 1) {
    const at = layout.x(tick * step);
    context.fillStyle = colours.line;
    context.fillRect(at, layout.rowsTop, 1, layout.bottom - layout.rowsTop + 4);
    context.fillStyle = colours.quiet;
    const text = axisText(tick * step, step);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(at - half, layout.left), layout.width - 2 * half), layout.bottom + 18);
  }
}

function axisText(seconds, step) {
  const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  return step >= 0.1 ? `${seconds.toFixed(digits)} s` : `${(seconds * 1e3).toFixed(Math.max(0, digits - 3))} ms`;
}

function drawMark({ run, layout, context, colours }, { step, row }) {
  const place = row === undefined ? -1 : layout.rows.indexOf(row);
  if (place >= 0) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.5;
    const high = Math.max(3, layout.rowHigh);
    context.strokeRect(layout.left + 0.75, layout.rowsTop + place * layout.rowHigh - 1.5, layout.width - layout.left - 1.5, high + 1);
  }
  if (step === undefined) return;
  const left = layout.x(run.starts[step]);
  const wide = Math.max(1.5, layout.x(run.ends[step]) - left);
  context.fillStyle = colours.ink;
  context.globalAlpha = wide > 6 ? 0.16 : 0.6;
  context.fillRect(left, layout.rowsTop, wide, layout.bottom - layout.rowsTop);
  context.globalAlpha = 1;
}

function drawLabels({ run, layout, context, colours }, marked) {
  const { lanes } = layout;
  const shownRows = layout.rows.length;
  const hidden = run.rows.length - shownRows;
  label(layout.rowsTop, hidden ? `${counted(shownRows, "request")} of this time, ${humanCount(hidden)} at other times or waiting` : "requests, in the order of arrival");
  label(lanes.tokens.top, `tokens computed per step: at most ${humanCount(run.mostTokens)}`);
  const whole = run.blocksShown < run.blocks ? `at most ${humanCount(run.blocksShown)} of ${humanCount(run.blocks)}` : `all ${humanCount(run.blocks)} at the top`;
  label(lanes.blocks.top - MARKS, `KV blocks in use: ${whole}`);
  label(lanes.queue.top, "requests that run, and above them those that wait");
  if (!layout.left) return;
  const every = Math.ceil((READABLE_ROW - 0.01) / layout.rowHigh); // where all names do not fit, some do
  context.font = `${every > 1 ? 11 : Math.min(13, layout.rowHigh - 1)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  layout.rows.forEach((row, place) => {
    if (place % every) return;
    context.fillStyle = row === marked.row ? colours.ink : colours.quiet;
    const name = fitted(context, nameOf(row), layout.left - 10);
    context.fillText(name, 0, layout.rowsTop + place * layout.rowHigh + layout.rowHigh * 0.44);
  });
  context.textBaseline = "alphabetic";

  function label(bottom, text) {
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colours.quiet;
    context.fillText(fitted(context, text, layout.width - layout.left), layout.left, bottom - 6);
  }
}

/** As much of a text as fits. Only its beginning is looked at: it may be long. */
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

/** The whole run in a strip: its blocks in use, and the window that is in sight. */
function drawOverview(canvas, run, view, colours) {
  const [width, height] = [canvas.clientWidth || 600, 34];
  const context = sized(canvas, width, height);
  const x = (seconds) => (seconds / (run.axis || 1)) * width;
  const whole = { x, sharp: (seconds) => Math.round(x(seconds)) };
  forEachColumn(run, whole, 0, run.count, (left, wide, from, to, until) => {
    const used = (run.steps.used[largestAt(run.steps.used, from, to)] / run.blocksShown) * height;
    context.fillStyle = colours.held;
    context.fillRect(left, height - used, until - left, used);
  });
  const [left, right] = [whole.x(view.from), whole.x(view.to)];
  context.fillStyle = colours.veil;
  context.fillRect(0, 0, left, height);
  context.fillRect(right, 0, width - right, height);
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  context.strokeRect(left + 1, 1, Math.max(2, right - left - 2), height - 2);
}

/** The page's colours as the canvas wants them: read from the style sheet, so that both themes are kept in one place. */
function readColours() {
  const probe = element("i");
  probe.hidden = true;
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const colours = {
    prefill: read("prompt"), decode: read("made"), again: read("again"), idle: read("idle"), wait: read("wait"),
    held: read("kv"), reserved: read("kv-soft"), ink: read("ink"), quiet: read("quiet"), line: read("line"), veil: read("veil"),
  };
  colours.cached = hatch(read("prompt"), read("prompt-soft"));
  probe.remove();
  return colours;
}

function hatch(stroke, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 5;
  const context = tile.getContext("2d");
  context.fillStyle = ground;
  context.fillRect(0, 0, 5, 5);
  context.strokeStyle = stroke;
  context.lineWidth = 1.6;
  context.beginPath();
  for (const shift of [-5, 0, 5]) {
    context.moveTo(shift - 1, 6);
    context.lineTo(shift + 6, -1);
  }
  context.stroke();
  return context.createPattern(tile, "repeat");
}
