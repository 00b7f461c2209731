"use strict";

// Tokens to look at. A token is {id, text, bytes, special}: text is null where its bytes are part of a character.

/** A token as a chip: its text, its id, and, for a chosen one, a bar as long as its probability. */
function tokenChip(token, tag) {
  const chip = element(tag, "token");
  if (token.text === null) chip.classList.add("part");
  if (token.special) chip.classList.add("special");
  chip.append(element("bdi", "", visibleText(token)), element("small", "", String(token.id)));
  chip.title = token.text === null ? `id ${token.id}: part of a character, bytes ${token.bytes}` : `id ${token.id}: ${JSON.stringify(token.text)}`;
  return chip;
}

/** A bar as long as a probability, for the foot of a chip. */
function probabilityBar(probability) {
  const bar = element("i");
  bar.style.setProperty("--p", `${probability * 100}%`);
  return bar;
}

/** One of the likeliest tokens, in a list of class `choice`. */
function choiceRow(token, probability, isChosen) {
  const row = element("li", isChosen ? "chosen" : "");
  const bar = element("span", "bar");
  bar.style.setProperty("--p", `${probability * 100}%`);
  row.append(element("bdi", "", visibleText(token)), bar, element("span", "number", percent(probability)));
  return row;
}

/** Scroll inside `box`, and never the page, until `child` can be seen. */
function keepInSight(box, child) {
  const [top, bottom] = [child.offsetTop, child.offsetTop + child.offsetHeight];
  if (top < box.scrollTop) box.scrollTop = top - 4;
  if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight + 4;
}
