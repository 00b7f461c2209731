"use strict";

// What the reader sees and does. The trace is read once; everything that changes is changed in `show`.

const trace = JSON.parse(document.getElementById("trace").textContent);
const replay = makeReplay(trace);

const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];
const prefill = trace.passes[0];
const decodePasses = trace.passes.slice(1);
const mostBytes = Math.max(1, ...trace.passes.map((pass) => pass.weight_bytes + pass.kv_read_bytes));

let seconds = START;
let playing = false;
let frameAt = 0;
let moveLine = () => {};

// --- What does not change --------------------------------------------------------------------------------

function buildAbout() {
  const made = counted(trace.tokens.length, "token");
  $("about").textContent =
    `${trace.model} · ${trace.dtype} on ${trace.device} · ${counted(trace.prompt_tokens, "token")} in, ${made} out` +
    ` · ${humanSeconds(replay.duration)}`;
  $("total").textContent = ` of ${humanSeconds(replay.duration)}`;
  document.title = `The journey of a request: ${trace.model}`;
  $("decode-legend").textContent = trace.cache ? "one token" : "all tokens again";
  if (decodePasses.length && trace.cache) {
    const [first, last] = [decodePasses[0], decodePasses[decodePasses.length - 1]].map((pass) => humanBytes(pass.kv_read_bytes));
    $("kv-legend").textContent = `K and V read: ${first === last ? first : `${first} to ${last}`} per pass`;
  }
  $("timeline").setAttribute(
    "aria-label",
    `Time line of ${humanSeconds(replay.duration)}: ${counted(trace.passes.length, "pass")} through the model, the` +
      " first over the prompt, each later one for one more token. Use the slider at the foot of the page to move in it.",
  );
}

function buildLessons() {
  const weights = humanBytes(trace.weight_bytes);
  if (prefill) addLesson("prefill", "--prompt", ...prefillLesson());
  addLesson("decode", "--made", ...decodeLesson());
  addLesson(
    "weights", "--weights", "Each reads all the weights", weights,
    `times ${counted(trace.passes.length, "pass")}: ${humanBytes(trace.weight_bytes * trace.passes.length)} in all, for` +
      ` ${counted(trace.tokens.length, "token")}`,
  );
  if (trace.cache) {
    addLesson(
      "cache", "--kv", "The cache grows by one slot", humanBytes(trace.cache.bytes_per_token),
      `per token: K and V in each of ${trace.layers} layers, kept so that no token is computed twice`,
    );
  } else {
    addLesson("cache", "--kv", "No cache", "nothing kept", "so every pass computes all earlier tokens again");
  }
}

function prefillLesson() {
  const took = prefill.end_s - prefill.start_s;
  const cached = trace.prompt_tokens - prefill.tokens;
  const before = cached ? `${counted(cached, "token")} of the prompt were in the cache already. ` : "";
  return [
    "One big parallel pass",
    counted(prefill.tokens, "token"),
    `${before}Computed together in ${humanSeconds(took)}: ${humanSeconds(took / prefill.tokens)} per token`,
  ];
}

function decodeLesson() {
  if (!decodePasses.length) {
    const why = trace.tokens.length ? "The only token came out of the prompt's own pass" : "It was stopped before any token";
    return ["Then many small ones", "none", `${why}: there was nothing to decode`];
  }
  const took = decodePasses.map((pass) => pass.end_s - pass.start_s).sort((a, b) => a - b);
  const middle = humanSeconds(took[took.length >> 1]);
  const passes = counted(decodePasses.length, "pass");
  if (!trace.cache) return ["Then ever bigger ones", passes, `All tokens so far again, each for one new token; the median one takes ${middle}`];
  return ["Then many small ones", passes, `One new token each; the median one takes ${middle}`];
}

function addLesson(name, hue, title, figure, words) {
  const lesson = element("div", "lesson");
  lesson.dataset.lesson = name;
  lesson.style.setProperty("--hue", `var(${hue})`);
  lesson.append(element("b", "", title), element("strong", "", figure), element("span", "", words));
  $("lessons").append(lesson);
}

function buildPrompt() {
  trace.prompt.forEach((token, index) => {
    if (index === trace.prompt_skipped_after) {
      $("prompt").append(element("span", "skipped", `… ${humanCount(trace.prompt_tokens - trace.prompt.length)} more tokens …`));
    }
    const chip = tokenChip(token, "span");
    chip.setAttribute("role", "listitem");
    $("prompt").append(chip);
  });
  const cached = trace.cache && trace.cache.cached_tokens;
  $("prompt-count").textContent =
    counted(trace.prompt_tokens, "token") + (cached ? `, ${humanCount(cached)} of them in the cache from before` : "");
}

function buildTokens() {
  trace.tokens.forEach(({ token, probability, at_s }, index) => {
    const chip = tokenChip(token, "button");
    chip.type = "button";
    chip.tabIndex = -1;
    chip.classList.add("ahead");
    chip.setAttribute("aria-label", `Token ${index + 1}: ${spokenText(token)}, id ${token.id}, probability ${percent(probability)}`);
    chip.append(probabilityBar(probability));
    chip.title += `, probability ${percent(probability)}, after ${humanSeconds(at_s)}`;
    chip.addEventListener("click", () => jump(at_s));
    $("tokens").append(chip);
  });
}

/** What the italic pairs of digits are, where there are any. */
function buildPartsNote() {
  const parts = trace.prompt.concat(trace.tokens.map(({ token }) => token)).filter((token) => token.text === null);
  $("parts").hidden = parts.length === 0;
  if (parts.length) {
    $("parts").textContent =
      `Tokens such as ${parts[0].bytes.toUpperCase()} are bytes: part of a character. It is shown when its last byte is there.`;
  }
}

function buildCache() {
  if (!trace.cache) return buildNoCache();
  const { slots, cached_tokens, bytes_per_token } = trace.cache;
  const each = tokensPerSquare(slots);
  for (let first = 0; first < slots; first += each) $("slots").append(element("i", "slot"));
  const one = each === 1 ? "1 token" : `${humanCount(each)} tokens`;
  addLegend("prompt", "prompt");
  if (cached_tokens) addLegend("cached", "prompt, there from before");
  addLegend("made", "generated");
  addLegend("empty", `reserved, still empty (a square is ${one}, ${humanBytes(each * bytes_per_token)})`);
  $("cache-note").textContent =
    "The last token never gets a slot: it is chosen and handed out, but nobody asks what follows it, so it is never computed.";
}

function buildNoCache() {
  $("cache-title").textContent = "No KV cache";
  $("cache-note").textContent =
    "Each pass computes the keys and values of all tokens again and throws them away: the columns of the time line grow.";
  for (const hue of ["--made", "--kv"]) {
    const bar = element("div", "rows");
    bar.style.setProperty("--hue", `var(${hue})`);
    $("slots").append(bar);
  }
  $("slots").style.display = "block";
  $("kv-legend").parentElement.hidden = true;
  addLegend("made", "tokens computed");
  addLegend("kv", "tokens that a cache would have had computed");
}

function addLegend(kind, words) {
  const item = element("li");
  item.append(element("i", `swatch ${kind}`), words);
  $("slots-legend").append(item);
}

function buildCeiling() {
  const { share, sentence } = trace.ceiling;
  $("ceiling").textContent = sentence;
  $("gauge").hidden = share === null;
  if (share !== null) $("gauge").firstElementChild.style.width = `${Math.min(1, share) * 100}%`;
  $("ended").textContent = `■ ${trace.ended}`;
}

// --- What changes with the moment -------------------------------------------------------------------------

let shown = { tokens: 0, slots: 0 };

function show() {
  const state = replay.at(seconds);
  moveLine(seconds);
  $("scrub").value = String(replay.duration ? seconds / replay.duration : 0);
  $("scrub").setAttribute("aria-valuetext", `${humanSeconds(seconds)}, ${counted(state.tokens, "token")}`);
  $("elapsed").textContent = clockText(seconds);
  showNow(state);
  showTokens(state);
  if (trace.cache) showSlots(state);
  else showRows(state);
  shown = state;
}

function clockText(at) {
  return replay.duration >= 1 ? `${at.toFixed(2)} s` : `${(at * 1e3).toFixed(1)} ms`;
}

const PHASES = {
  tokenize: ["tokenize", "The text is cut into tokens, and each becomes a number: its id. This needs no model."],
  setup: ["make room", "The request is checked, and the cache reserves its slots."],
  sample: ["choose", "The pass has left one score per token of the vocabulary. One token is chosen from them."],
  detokenize: ["hand out", "The token becomes text, and is shown as soon as its characters are complete."],
};

function showNow(state) {
  const pass = trace.passes[state.pass];
  const [phase, words] = phaseWords(state, pass);
  $("phase").textContent = phase;
  $("explain").textContent = words;
  for (const lesson of $("lessons").children) lesson.classList.toggle("lit", isLit(lesson.dataset.lesson, state.phase));

  $("pass-tokens").textContent = pass ? humanCount(pass.tokens) : "–";
  $("pass-time").textContent = pass ? humanSeconds(pass.end_s - pass.start_s) : "–";
  const bytes = pass ? pass.weight_bytes + pass.kv_read_bytes : 0;
  $("pass-bytes").textContent = pass ? humanBytes(bytes) : "–";
  $("total-bytes").textContent = humanBytes(state.bytesRead);
  $("weights-bar").style.width = `${((pass ? pass.weight_bytes : 0) / mostBytes) * 100}%`;
  $("kv-bar").style.width = `${((pass ? pass.kv_read_bytes : 0) / mostBytes) * 100}%`;
  $("bytes-words").textContent = pass ? bytesWords(pass, bytes) : "No pass has begun.";
  showChoice(state);
}

function phaseWords(state, pass) {
  if (state.seconds === START) return ["the start", "Play shows the request again as it ran (also: the space bar); the arrow keys go from token to token. It begins with text that becomes tokens."];
  if (state.phase === "end") return ["the end", `${trace.ended} ${endWords()}`];
  if (state.phase === "prefill") {
    const which = pass.tokens < trace.prompt_tokens ? "new tokens" : "tokens";
    const words = `The prompt's ${humanCount(pass.tokens)} ${which} go through the model together: one read of its weights serves all of them.`;
    return ["prefill, one big pass", pass.tokens > 1 ? words : "One token of the prompt goes through the model, and leaves the scores for the first choice."];
  }
  if (state.phase === "decode") {
    const which = `decode, pass ${humanCount(state.pass)} of ${humanCount(decodePasses.length)}`;
    const newest = visibleText(trace.tokens[state.pass - 1].token);
    if (!trace.cache) return [which, `Nothing was kept, so all ${humanCount(pass.tokens)} tokens are computed again, to add one.`];
    return [which, `One small pass for one token, ${newest}: it reads all the weights again, and the K and V of every token so far.`];
  }
  return PHASES[state.phase];
}

function endWords() {
  if (!trace.passes.length) return "No pass through the model was finished.";
  return `${counted(trace.passes.length, "pass")} read ${humanBytes(replay.at(replay.duration).bytesRead)} for ${counted(trace.tokens.length, "token")}.`;
}

function isLit(lesson, phase) {
  if (lesson === "weights") return phase === "prefill" || phase === "decode";
  if (lesson === "cache") return phase === "decode" || phase === "prefill";
  return lesson === phase;
}

function bytesWords(pass, bytes) {
  const kv = pass.kv_read_bytes ? ` + ${humanBytes(pass.kv_read_bytes)} of K and V` : "";
  const read = `${humanBytes(pass.weight_bytes)} of weights${kv}`;
  const { bandwidth_bytes_per_s: bandwidth } = trace.ceiling;
  return bandwidth ? `${read}: reading alone takes at least ${humanSeconds(bytes / bandwidth)} on this machine.` : `${read}.`;
}

function showChoice(state) {
  if (state.tokens === shown.tokens && $("choice").childElementCount) return;
  $("choice-title").textContent = state.tokens ? `Choice ${humanCount(state.tokens)} of ${humanCount(trace.tokens.length)}` : "The first choice comes after the prefill";
  $("choice").replaceChildren();
  if (!state.tokens) return;
  const { token, probability, alternatives } = trace.tokens[state.tokens - 1];
  const among = alternatives.some(([other]) => other.id === token.id);
  for (const [other, p] of among ? alternatives : [...alternatives, [token, probability]]) {
    const row = choiceRow(other, p, other.id === token.id);
    row.firstElementChild.title = `id ${other.id}`;
    $("choice").append(row);
  }
}

function showTokens(state) {
  const chips = $("tokens").children;
  for (let i = shown.tokens; i < state.tokens; i += 1) chips[i].classList.remove("ahead");
  for (let i = state.tokens; i < shown.tokens; i += 1) chips[i].classList.add("ahead");
  const [before, newest] = [chips[shown.tokens - 1], chips[state.tokens - 1]];
  if (before !== newest) {
    if (before) markNewest(before, false);
    if (newest) markNewest(newest, true);
  }
  if ($("answer").textContent !== state.text) {
    $("answer").textContent = state.text;
    $("answer").scrollTop = $("answer").scrollHeight;
  }
  $("ended").hidden = state.phase !== "end";
}

/** One of the chips can be reached with the tab key: the latest. */
function markNewest(chip, newest) {
  chip.classList.toggle("newest", newest);
  chip.tabIndex = newest ? 0 : -1;
  if (newest) keepInSight($("tokens"), chip);
}

function showSlots(state) {
  const { slots, bytes_per_token, reserved_bytes } = trace.cache;
  const squares = $("slots").children;
  const each = tokensPerSquare(slots);
  const running = state.phase === "prefill" || state.phase === "decode" ? trace.passes[state.pass].tokens : 0;
  const atEnd = state.phase === "end" && trace.tokens.length > 0;
  for (let index = 0; index < squares.length; index += 1) paintSquare(squares[index], index * each, each, state.slots, running, atEnd);
  const full = squares[Math.max(0, Math.ceil(state.slots / each) - 1)];
  if (full && state.slots !== shown.slots) keepInSight($("slots"), full);
  $("slots").dataset.filled = String(state.slots);
  $("cache-words").textContent =
    `${humanCount(state.slots)} of ${humanCount(slots)} slots filled: ${humanBytes(state.slots * bytes_per_token)}` +
    ` of ${humanBytes(reserved_bytes)} reserved (${percent((state.slots * bytes_per_token) / reserved_bytes)}).`;
}

/** The square for the `each` slots from `first` on, of which those before `filled` are in use. */
function paintSquare(square, first, each, filled, running, atEnd) {
  let kind = "";
  if (first < filled) {
    kind = first < trace.cache.cached_tokens ? "cached" : first < trace.prompt_tokens ? "prompt" : "made";
  } else if (first < filled + running) {
    kind = first < trace.prompt_tokens ? "writing first" : "writing";
  } else if (atEnd && first === filled) {
    kind = "never";
  }
  const full = first + each <= filled ? "" : `${((filled - first) / each) * 100}%`;
  const wanted = `slot ${kind}`.trim();
  if (square.className !== wanted) square.className = wanted;
  if (square.dataset.full !== full) {
    square.dataset.full = full;
    square.style.setProperty("--full", first < filled && full ? full : "100%");
  }
}

function showRows(state) {
  const withCache = state.passesDone ? trace.prompt_tokens + state.passesDone - 1 : 0;
  const all = replay.at(replay.duration).tokensComputed || 1;
  const [made, kept] = $("slots").children;
  made.style.setProperty("--p", `${(state.tokensComputed / all) * 100}%`);
  kept.style.setProperty("--p", `${(withCache / all) * 100}%`);
  $("cache-words").textContent =
    `${counted(state.tokensComputed, "token")} computed so far; with a cache it would be ${humanCount(withCache)}.`;
}

// --- What the reader does ----------------------------------------------------------------------------------

function moveTo(moment) {
  seconds = Math.min(Math.max(moment, START), replay.duration);
  show();
}

/** Go to a moment and stay there. */
function jump(moment) {
  pause();
  moveTo(moment);
  speak();
}

function step(direction) {
  jump(replay.neighbour(seconds, direction));
}

function play() {
  if (seconds >= replay.duration) moveTo(START);
  playing = true;
  frameAt = performance.now();
  requestAnimationFrame(frame);
  showPlaying();
}

function pause() {
  playing = false;
  showPlaying();
}

function showPlaying() {
  $("play").textContent = playing ? "Pause" : "Play";
  $("play").setAttribute("aria-label", playing ? "Pause" : "Play");
}

function frame(now) {
  if (!playing) return;
  const passed = Math.max(0, now - frameAt) / 1e3;
  frameAt = now;
  moveTo(seconds + passed * Number($("speed").value));
  if (seconds >= replay.duration) {
    pause();
    speak();
  } else {
    requestAnimationFrame(frame);
  }
}

/** Say where we are to those who listen; not while playing, which would never stop talking. */
function speak() {
  const state = replay.at(seconds);
  const token = state.tokens ? `Token ${state.tokens}: ${spokenText(trace.tokens[state.tokens - 1].token)}.` : "";
  $("spoken").textContent = `${humanSeconds(seconds)}. ${$("phase").textContent}. ${token}`;
}

function buildSpeeds() {
  for (const speed of SPEEDS) {
    const option = element("option", "", speed === 1 ? "1× (real)" : `${speed}×`);
    option.value = String(speed);
    $("speed").append(option);
  }
  // As it was, if that can be followed; else slower or faster, so that the replay lasts some 15 seconds.
  const fits = replay.duration >= 4 && replay.duration <= 45;
  const wanted = fits ? 1 : SPEEDS.find((speed) => replay.duration / speed <= 20) || SPEEDS[SPEEDS.length - 1];
  $("speed").value = String(wanted);
}

const KEYS = {
  " ": () => (playing ? pause() : play()),
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  Home: () => jump(START),
  End: () => jump(replay.duration),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  const pressing = event.key === " " && ["BUTTON", "SUMMARY"].includes(event.target.tagName); // the space bar presses those
  if (!(event.key in KEYS) || pressing) return;
  event.preventDefault();
  KEYS[event.key]();
}

function listen() {
  $("play").addEventListener("click", () => (playing ? pause() : play()));
  $("start").addEventListener("click", () => jump(START));
  $("back").addEventListener("click", () => step(-1));
  $("forward").addEventListener("click", () => step(1));
  $("scrub").addEventListener("input", () => jump(Number($("scrub").value) * replay.duration));
  document.addEventListener("keydown", onKey);
  const scrubTo = (event) => {
    const box = $("timeline").getBoundingClientRect();
    jump(((event.clientX - box.left) / box.width) * replay.duration);
  };
  $("timeline").addEventListener("pointerdown", (event) => {
    $("timeline").setPointerCapture(event.pointerId);
    scrubTo(event);
  });
  $("timeline").addEventListener("pointermove", (event) => {
    if ($("timeline").hasPointerCapture(event.pointerId)) scrubTo(event);
  });
  new ResizeObserver(() => {
    moveLine = drawTimeline($("timeline"), trace, replay);
    moveLine(seconds);
  }).observe($("timeline").parentElement);
}

buildAbout();
buildLessons();
buildPrompt();
buildTokens();
buildPartsNote();
buildCache();
buildCeiling();
buildSpeeds();
listen();
moveLine = drawTimeline($("timeline"), trace, replay);
show();
