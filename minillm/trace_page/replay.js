"use strict";

// What is true at which second of the request. Nothing here touches the page.

const START = 0;

/**
 * The trace, made ready to be asked about any moment.
 *
 * `moments` are the seconds at which something is finished, in order: the places where the step buttons stop.
 * `at(seconds)` says what is done by then and what is going on.
 */
function makeReplay(trace) {
  const passEnds = trace.passes.map((pass) => pass.end_s);
  const passStarts = trace.passes.map((pass) => pass.start_s);
  const tokenTimes = trace.tokens.map((token) => token.at_s);
  const moments = inOrder([START, trace.tokenize_s, ...passEnds.slice(0, 1), ...tokenTimes]);
  const duration = moments[moments.length - 1];

  const text = trace.tokens.map((token) => token.shown).join("");

  // Text and bytes so far, by number of tokens and of passes done.
  const textEnds = runningSums(trace.tokens.map((token) => token.shown.length));
  const bytesRead = runningSums(trace.passes.map((pass) => pass.weight_bytes + pass.kv_read_bytes));
  const tokensComputed = runningSums(trace.passes.map((pass) => pass.tokens));
  const cachedBefore = trace.cache ? trace.cache.cached_tokens : 0;

  function at(seconds) {
    const passesDone = countUpTo(passEnds, seconds);
    const passesBegun = countUpTo(passStarts, seconds);
    const tokens = countUpTo(tokenTimes, seconds);
    return {
      seconds,
      tokens,
      passesDone,
      // The pass that runs, or else the last one that was finished; -1 before the first.
      pass: Math.max(passesBegun, passesDone) - 1,
      phase: phaseAt(seconds, passesBegun, passesDone, tokens),
      text: text.slice(0, textEnds[tokens]),
      slots: trace.cache ? cachedBefore + tokensComputed[passesDone] : 0,
      bytesRead: bytesRead[passesDone],
      tokensComputed: tokensComputed[passesDone],
    };
  }

  function phaseAt(seconds, passesBegun, passesDone, tokens) {
    if (seconds >= duration) return "end";
    if (seconds < trace.tokenize_s) return "tokenize";
    if (passesBegun === 0) return "setup";
    if (passesBegun > passesDone) return passesBegun === 1 ? "prefill" : "decode";
    return tokens < passesDone ? "sample" : "detokenize";
  }

  /** The next moment after `seconds`, or the last one before it. */
  function neighbour(seconds, direction) {
    if (direction > 0) return moments[Math.min(countUpTo(moments, seconds), moments.length - 1)];
    return moments[Math.max(0, countBelow(moments, seconds) - 1)];
  }

  return { duration, moments, text, at, neighbour };
}

function inOrder(numbers) {
  return [...new Set(numbers)].sort((a, b) => a - b);
}
