"use strict";

// The five steps of a request with their times, and the time of each token against what memory allows.

const GAPS = 100; // the newest, as bars
const NS = "http://www.w3.org/2000/svg";
const [WIDE, HIGH] = [600, 110]; // of the picture's own units

const STEPS = ["tokenize", "prefill", "first", "decode", "text"];

/** mine: the request as the engine has it, if it is there. memory: see the server's /engine. */
function showJourney(answer, mine, memory) {
  for (const name of STEPS) {
    const item = document.querySelector(`#steps [data-step="${name}"]`);
    const { state, figure, words } = stepOf(name, answer, mine);
    item.className = state;
    item.children[1].textContent = figure;
    item.children[2].textContent = words;
  }
  showTpot(answer, memory);
  drawGaps(answer, memory);
}

function stepOf(name, answer, mine) {
  const { sentAt, joinedAt, firstAt, tokens, reason } = answer;
  const since = (from, to) => humanSeconds((to - from) / 1e3);
  const ended = reason !== null;
  const state = (begun, done) => (done ? "done" : begun && !ended ? "now" : "");
  const prompt = answer.promptIds.length || (mine ? mine.prompt_tokens : 0);
  if (name === "tokenize") {
    const words = prompt ? `Text became ${counted(prompt, "id")}, and the request joined the queue` : "Text becomes ids, and the request joins the queue";
    return { state: state(true, joinedAt !== null), figure: joinedAt ? since(sentAt, joinedAt) : "–", words };
  }
  if (name === "prefill") return { state: state(joinedAt !== null, firstAt !== null), figure: firstAt ? since(joinedAt, firstAt) : "–", words: prefillWords(answer, mine, prompt) };
  if (name === "first") return { state: state(joinedAt !== null, firstAt !== null), figure: firstAt ? since(sentAt, firstAt) : "–", words: "TTFT: from sending to here" };
  if (name === "decode") {
    const figure = tokens.length > 1 ? since(firstAt, answer.lastAt) : "–";
    const words = tokens.length > 1 ? `${counted(tokens.length - 1, "small pass")}, one for each further token` : "One small pass for each further token";
    return { state: state(firstAt !== null, ended && firstAt !== null), figure, words };
  }
  const figure = answer.text ? counted([...answer.text].length, "character") : "–";
  const words = ended ? ENDS[reason] : "Ids become characters, as soon as they are whole";
  return { state: state(firstAt !== null, ended && firstAt !== null), figure: figure.replace("characters", "chars").replace("character", "char"), words };
}

const ENDS = {
  stop: "The model ended it by itself",
  length: "It reached its most tokens",
  stopped: "You stopped it",
  broken: "It broke off",
};

function prefillWords(answer, mine, prompt) {
  const cached = answer.cached !== null ? answer.cached : mine ? mine.cached_tokens : 0;
  if (answer.firstAt === null && mine && mine.state === "waiting") return "It waits for others to finish";
  if (answer.firstAt === null && mine) return `${humanCount(mine.computed_tokens)} of ${counted(prompt, "token")} computed`;
  if (answer.firstAt === null) return "One big pass reads the prompt";
  const found = cached ? `; ${humanCount(cached)} were in the cache` : "";
  return `${counted(prompt - cached, "token")} in one big pass${found}`;
}

function showTpot(answer, memory) {
  const { tpot } = answer;
  if (tpot === null) {
    $("tpot").textContent = "It takes two tokens to tell.";
    $("ceiling").textContent = ceilingUnknown(memory);
    return;
  }
  $("tpot").textContent = `${humanSeconds(tpot)} per token: ${threeDigits(1 / tpot)} tokens/s.${company(answer)}`;
  const least = answer.leastTpot(memory);
  if (least === null) {
    $("ceiling").textContent = ceilingUnknown(memory);
    return;
  }
  const bytes = least * memory.bandwidth_bytes_per_s;
  $("ceiling").textContent =
    `Each pass reads ${humanBytes(bytes)} (all weights, and your K and V). At this machine's ${humanBytes(memory.bandwidth_bytes_per_s)}/s` +
    ` that alone takes ${humanSeconds(least)}: ${threeDigits(1 / least)} tokens/s at most, of which this is ${percent(least / tpot)}.`;
}

/** What the others in the batch cost, where there were both times with and without. */
function company(answer) {
  const middle = (isIt) => {
    const gaps = answer.tokens.filter((one) => one.gap !== null && isIt(one.batch)).map((one) => one.gap / 1e3).sort((a, b) => a - b);
    return gaps.length ? humanSeconds(gaps[gaps.length >> 1]) : null;
  };
  const [alone, crowd] = [middle((batch) => batch <= 1), middle((batch) => batch > 1)];
  return alone && crowd ? ` Alone it was ${alone}, with others ${crowd}: one pass serves them all, and has more to compute.` : "";
}

function ceilingUnknown(memory) {
  if (!memory || memory.bandwidth_bytes_per_s) return "";
  return "The ceiling is not known: nobody has measured this machine's memory yet. Run `minillm limits`, then start the server again.";
}

function drawGaps(answer, memory) {
  const svg = $("gaps");
  const gaps = answer.tokens.filter((one) => one.gap !== null).slice(-GAPS);
  const least = answer.leastTpot(memory);
  svg.replaceChildren();
  if (!gaps.length) {
    svg.setAttribute("aria-label", "Time between tokens: none yet");
    return;
  }
  // A single stall must not flatten the rest: the highest of all but the highest few is the scale.
  const sorted = gaps.map((one) => one.gap / 1e3).sort((a, b) => a - b);
  const top = 1.25 * Math.max(sorted[Math.floor((sorted.length - 1) * 0.95)], least || 0, 1e-6);
  const step = WIDE / Math.max(gaps.length, 24);
  gaps.forEach((one, index) => {
    const high = Math.min(1, one.gap / 1e3 / top) * HIGH;
    add(svg, "rect", { class: one.batch > 1 ? "crowd" : "alone", x: index * step, y: HIGH - high, width: step * 0.8, height: high });
  });
  if (least !== null) add(svg, "line", { class: "floor", x1: 0, x2: WIDE, y1: HIGH - (least / top) * HIGH, y2: HIGH - (least / top) * HIGH });
  const crowd = gaps.filter((one) => one.batch > 1).length;
  const middle = humanSeconds(sorted[sorted.length >> 1]);
  svg.setAttribute("aria-label", `Time between the last ${counted(gaps.length + 1, "token")}: ${middle} in the middle; others were in the batch at ${humanCount(crowd)} of them`);
}

function add(parent, tag, attributes) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  parent.append(made);
}
