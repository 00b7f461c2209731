"use strict";

// The tokens of an answer as a strip of chips, a part at a time: a page must not grow with each of 2,000 tokens.

const CHIPS = 200;

const strip = { answer: null, from: 0, shown: 0, marked: null, follows: true };

/** Another answer, or none. */
function stripOf(answer) {
  Object.assign(strip, { answer, from: 0, shown: 0, marked: null, follows: true });
  $("tokens").replaceChildren();
  $("choice").replaceChildren();
  $("choice-title").hidden = true;
  showStrip();
}

/** Show what is new. */
function showStrip() {
  const { answer } = strip;
  const count = answer ? answer.tokens.length : 0;
  if (strip.follows && count > strip.from + CHIPS) turnTo(Math.floor((count - 1) / CHIPS) * CHIPS);
  const to = Math.min(count, strip.from + CHIPS);
  for (let i = strip.from + strip.shown; i < to; i += 1) $("tokens").append(chipOf(i));
  strip.shown = to - strip.from;
  const focused = document.activeElement && document.activeElement.parentElement === $("tokens");
  if (strip.shown && strip.marked === null && strip.follows && !focused) {
    showChoice(to - 1);
    keepInSight($("tokens"), $("tokens").lastElementChild);
  }
  reachable();
  $("pages").hidden = count <= CHIPS;
  $("earlier").disabled = strip.from === 0;
  $("later").disabled = strip.from + CHIPS >= count;
  if (count) {
    const part = count > CHIPS ? `${humanCount(strip.from + 1)} to ${humanCount(to)} of ` : "";
    $("tokens-title").textContent = `Its tokens: ${part}${humanCount(count)}`;
  } else {
    $("tokens-title").textContent = "Its tokens";
  }
}

function turnTo(from) {
  Object.assign(strip, { from, shown: 0 });
  $("tokens").replaceChildren();
}

function chipOf(index) {
  const { token, probability } = strip.answer.tokens[index];
  const chip = tokenChip(token, "button");
  chip.type = "button";
  chip.tabIndex = -1;
  chip.dataset.index = String(index);
  chip.setAttribute("aria-label", `Token ${index + 1}: ${spokenText(token)}, id ${token.id}, probability ${percent(probability)}`);
  chip.title += `, probability ${percent(probability)}`;
  chip.append(probabilityBar(probability));
  return chip;
}

/** One of the chips can be reached with the tab key: the marked one, else the newest. */
function reachable() {
  const chips = $("tokens").children;
  const wanted = chips[(strip.marked === null ? Number.NaN : strip.marked - strip.from)] || chips[chips.length - 1];
  const before = $("tokens").querySelector('[tabindex="0"]');
  if (before === wanted) return;
  if (before) before.tabIndex = -1;
  if (wanted) wanted.tabIndex = 0;
}

/** The likeliest tokens in the place of this one. */
function showChoice(index) {
  const { token, probability, top } = strip.answer.tokens[index];
  const isIt = (other) => other.bytes === token.bytes;
  const rows = top.some(([other]) => isIt(other)) ? top : [...top, [token, probability]];
  $("choice-title").hidden = false;
  $("choice-title").textContent = `Token ${humanCount(index + 1)} and what else it might have been`;
  $("choice").replaceChildren(...rows.map(([other, p]) => choiceRow(other, p, isIt(other))));
}

/** Keep a token's choice in sight; null: the newest one's again. */
function markToken(index) {
  strip.marked = index;
  for (const chip of $("tokens").children) showMarked(chip, Number(chip.dataset.index) === index);
  if (index !== null) showChoice(index);
  reachable();
}

function showMarked(chip, isMarked) {
  chip.classList.toggle("marked", isMarked);
  chip.setAttribute("aria-pressed", String(isMarked));
}

function indexUnder(event) {
  const chip = event.target.closest(".token");
  return chip ? Number(chip.dataset.index) : null;
}

$("tokens").addEventListener("click", (event) => {
  const index = indexUnder(event);
  if (index !== null) markToken(index === strip.marked ? null : index);
});
for (const kind of ["pointerover", "focusin"]) {
  $("tokens").addEventListener(kind, (event) => {
    const index = indexUnder(event);
    if (index !== null) showChoice(index);
  });
}
$("tokens").addEventListener("pointerleave", () => {
  if (strip.marked !== null) showChoice(strip.marked);
});
$("tokens").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  const index = indexUnder(event);
  if (step === undefined || index === null) return;
  event.preventDefault();
  const chips = $("tokens").children;
  const next = chips[Math.min(Math.max(index - strip.from + step, 0), chips.length - 1)];
  markToken(Number(next.dataset.index));
  next.focus();
});
$("earlier").addEventListener("click", () => turnBy(-CHIPS));
$("later").addEventListener("click", () => turnBy(CHIPS));

function turnBy(count) {
  turnTo(Math.max(0, strip.from + count));
  strip.follows = strip.from + CHIPS >= strip.answer.tokens.length;
  markToken(null);
  showStrip();
}
