"use strict";

// The time line: one column per forward pass, as wide as it took. Above, how many tokens it computed at once; below,
// how many bytes it read. A prefill is one high column, decode a row of low ones; below they are all the same height.

const CHART = { labels: 20, above: 84, gap: 26, below: 62, axis: 24 };
const SVG = "http://www.w3.org/2000/svg";

/** Draw `trace` into the SVG element `chart` and return `(seconds) => ...`, which moves the line that marks now. */
function drawTimeline(chart, trace, replay) {
  const width = chart.clientWidth || 600;
  const aboveEnd = CHART.labels + CHART.above;
  const belowStart = aboveEnd + CHART.gap;
  const belowEnd = belowStart + CHART.below;
  const height = belowEnd + CHART.axis;
  const x = (seconds) => (replay.duration ? (seconds / replay.duration) * width : 0);

  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.style.height = `${height}px`;
  chart.replaceChildren();

  const passes = trace.passes;
  const mostTokens = Math.max(1, ...passes.map((pass) => pass.tokens));
  const mostBytes = Math.max(1, ...passes.map((pass) => pass.weight_bytes + pass.kv_read_bytes));
  const tokensHigh = (pass) => Math.max(2, (pass.tokens / mostTokens) * CHART.above);
  const weightsHigh = (pass) => (pass.weight_bytes / mostBytes) * CHART.below;
  const kvHigh = (pass) => (pass.kv_read_bytes / mostBytes) * CHART.below;

  // One path per kind keeps thousands of passes light.
  const column = (pass, top, high) => {
    const end = pass === passes[0] ? Math.max(pass.end_s, pass.start_s + (2 / width) * replay.duration) : pass.end_s;
    return columnFromTo(pass.start_s, end, top, high); // the prefill can be seen, however long the answer is
  };
  function columnFromTo(start, end, top, high) {
    const left = x(start);
    const wide = x(end) - left;
    const drawn = wide > 4 ? wide - 1 : wide; // a hair between neighbours where there is room for it
    return `M${left.toFixed(2)} ${top.toFixed(2)}h${drawn.toFixed(2)}v${high.toFixed(2)}h${(-drawn).toFixed(2)}z`;
  }
  const paths = { other: columnFromTo(START, trace.tokenize_s, aboveEnd - 8, 8), prefill: "", decode: "", weights: "", kv: "" };
  passes.forEach((pass, number) => {
    paths[number === 0 ? "prefill" : "decode"] += column(pass, aboveEnd - tokensHigh(pass), tokensHigh(pass));
    paths.weights += column(pass, belowEnd - weightsHigh(pass), weightsHigh(pass));
    paths.other += columnFromTo(pass.end_s, pass.end_s + pass.sample_s, aboveEnd - 8, 8);
    paths.kv += column(pass, belowEnd - weightsHigh(pass) - kvHigh(pass), kvHigh(pass));
  });
  for (const [kind, d] of Object.entries(paths)) add("path", { class: kind, d });
  add("line", { class: "ground", x1: 0, x2: width, y1: aboveEnd + 0.5, y2: aboveEnd + 0.5 });
  add("line", { class: "ground", x1: 0, x2: width, y1: belowEnd + 0.5, y2: belowEnd + 0.5 });
  const future = add("rect", { class: "future", y: 0, height: belowEnd });
  drawLabels();
  drawAxis();
  const now = add("line", { class: "now", y1: 0, y2: belowEnd + 6 });
  const knob = add("circle", { class: "now-knob", cy: belowEnd + 6, r: 6 });

  return (seconds) => {
    const at = x(seconds);
    future.setAttribute("x", at);
    future.setAttribute("width", Math.max(0, width - at));
    now.setAttribute("x1", at);
    now.setAttribute("x2", at);
    knob.setAttribute("cx", Math.min(Math.max(at, 6), width - 6));
  };

  function drawLabels() {
    add("text", { class: "band", x: 0, y: 13 }, "tokens computed at once");
    add("text", { class: "band", x: 0, y: belowStart - 8 }, "bytes read from memory, per pass");
    if (passes.length < 2 || width < 560) return;
    const left = Math.max(x(passes[0].end_s) + 8, 190);
    if (left > width - 330) return;
    const tokens = counted(passes[0].tokens, "token");
    add("text", { class: "note", x: left, y: 13 }, `prefill: ${tokens} in one pass, then ${humanCount(passes.length - 1)} × decode`);
  }

  function drawAxis() {
    const step = roundStep(replay.duration / Math.max(2, Math.floor(width / 110)));
    for (let seconds = 0; seconds <= replay.duration; seconds += step) {
      const at = x(seconds);
      add("line", { class: "tick", x1: at, x2: at, y1: belowEnd, y2: belowEnd + 5 });
      const anchor = at < 20 ? "start" : at > width - 30 ? "end" : "middle";
      const label = step >= 0.1 ? `${Number(seconds.toFixed(2))} s` : `${Number((seconds * 1e3).toFixed(2))} ms`;
      add("text", { class: "tick", x: at, y: belowEnd + 20, "text-anchor": anchor }, label);
      if (!(step > 0)) break;
    }
  }

  function add(name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    chart.append(element);
    return element;
  }
}

/** How many tokens one square of the cache's picture stands for, so that there are not too many squares. */
function tokensPerSquare(slots, mostSquares = 700) {
  return Math.max(1, roundStep(slots / mostSquares));
}
