"use strict";

// What the pages share: elements of the page, ascending numbers, numbers and text in words.

const $ = (id) => document.getElementById(id);

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/** How many of the ascending `numbers` are at most `limit`. */
function countUpTo(numbers, limit) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** How many of the ascending `numbers` are less than `limit`. */
function countBelow(numbers, limit) {
  let count = countUpTo(numbers, limit);
  while (count > 0 && numbers[count - 1] === limit) count -= 1;
  return count;
}

/** [0, a, a + b, ...]: one entry more than `numbers`. */
function runningSums(numbers) {
  const sums = [0];
  for (const number of numbers) sums.push(sums[sums.length - 1] + number);
  return sums;
}

/** The round number (1, 2 or 5 times a power of ten) that is not below `about`. */
function roundStep(about) {
  if (!(about > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(about));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= about * 0.999);
}

// Numbers in words. The units are those of the tables that the command line prints.

/** Three digits in decimal units, as bandwidths are quoted in: 23.0 kB is 23 kB, 538 MB, 1.61 GB. */
function humanBytes(count) {
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (count >= unit) return `${threeDigits(count / unit)} ${name}`;
  }
  return `${Math.round(count)} B`;
}

function threeDigits(number) {
  return number >= 100 ? Math.round(number).toString() : Number(number.toPrecision(3)).toString();
}

function humanSeconds(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const milliseconds = seconds * 1e3;
  return milliseconds >= 1 ? `${milliseconds.toFixed(1)} ms` : `${milliseconds.toFixed(2)} ms`;
}

function humanCount(count) {
  return count.toLocaleString("en-US");
}

/** "1 token", "2 tokens". */
function counted(count, noun) {
  const plural = noun.endsWith("s") ? `${noun}es` : `${noun}s`;
  return `${humanCount(count)} ${count === 1 ? noun : plural}`;
}

function percent(share) {
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  if (share >= 0.9995 && share < 1) return "> 99.9 %";
  return `${(share * 100).toFixed(share < 0.1 || share > 0.9 ? 1 : 0)} %`;
}

/** A token's text with what cannot be seen made visible: ␣ for spaces, ⏎, \x07, U+200D. */
function visibleText(token) {
  if (token.text === null) return token.bytes.toUpperCase();
  if (token.text === "") return "(no text)";
  return token.text
    .replace(/ /g, "␣")
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/[\u0000-\u001f\u007f]/g, (c) => `\\x${c.codePointAt(0).toString(16).padStart(2, "0")}`)
    .replace(/[\p{Cc}\p{Cf}\p{Z}]/gu, (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);
}

/** The same for ears. */
function spokenText(token) {
  if (token.text === null) return `part of a character, bytes ${token.bytes}`;
  if (token.text === "") return "a token without text";
  if (token.text.trim() === "") return "white space";
  return token.text;
}
