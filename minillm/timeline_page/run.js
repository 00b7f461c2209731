"use strict";

// What is true of which request in which step. Nothing here touches the page.

// One piece of work, as the data has it: [step, count, start, tokens, again, samples].
const [STEP, COUNT, FIRST, TOKENS, AGAIN, SAMPLES] = [0, 1, 2, 3, 4, 5];

/**
 * One run, made ready to be drawn and asked about.
 *
 * `starts`, `ends`: the seconds of each step. `prefill`, `again`, `decode`: tokens that each step computed, by kind.
 * `gaveWay`: how many requests lost their blocks in it. `present`: those that ran or waited. Each row gets its `periods`
 * (see `periodsOf`). `usualStep`: the median's seconds.
 */
function makeRun(run) {
  const { start_s: starts, schedule_s, forward_s, sample_s } = run.steps;
  const count = starts.length;
  const ends = starts.map((start, step) => start + schedule_s[step] + forward_s[step] + sample_s[step]);
  const [prefill, again, decode, gaveWay] = Array.from({ length: 4 }, () => new Int32Array(count));
  const duration = Math.max(mostOf(ends), mostOf(run.requests.map((row) => Math.max(row.arrived_s, row.ended_s || 0))));

  const rows = run.requests.map((request, index) => {
    for (const work of request.work) {
      for (let step = work[STEP]; step < work[STEP] + work[COUNT]; step += 1) {
        again[step] += work[AGAIN];
        (kindOf(work, request) === "decode" ? decode : prefill)[step] += work[TOKENS] - work[AGAIN];
      }
    }
    for (const step of request.preemptions) gaveWay[step] += 1;
    return { ...request, index, periods: periodsOf(request, starts, duration) };
  });

  /** The step that runs at `seconds`, or the one nearest to it; -1 where there is none. */
  function stepAt(seconds) {
    const step = countUpTo(starts, seconds) - 1;
    if (step < 0) return count ? 0 : -1;
    const between = seconds - ends[step];
    return between > 0 && step + 1 < count && starts[step + 1] - seconds < between ? step + 1 : step;
  }

  const tokens = starts.map((_, step) => prefill[step] + again[step] + decode[step]);
  const present = starts.map((_, step) => run.steps.running[step] + run.steps.waiting[step]);
  const mostUsed = mostOf(run.steps.used);
  return {
    ...run, count, starts, ends, duration, rows, prefill, again, decode, gaveWay, tokens, present, stepAt,
    mostTokens: Math.max(1, mostOf(tokens)),
    mostRequests: Math.max(1, mostOf(present)),
    blocksShown: mostUsed * 2 > run.blocks ? run.blocks : Math.max(1, mostUsed), // a pool that is hardly used is not drawn in full
    usualStep: ends.map((end, step) => end - starts[step]).sort((a, b) => a - b)[count >> 1] || 0,
  };
}

/** The largest of many numbers, 0 for none of them. */
function mostOf(numbers) {
  return numbers.reduce((most, number) => Math.max(most, number), 0);
}

/** Reading the prompt, the same once more after a preemption, or token by token. */
function kindOf(work, request) {
  if (work[AGAIN] > 0) return "again";
  return work[FIRST] >= request.prompt ? "decode" : "prefill";
}

/**
 * A request's life: it waits, it runs, and, where it lost its blocks, both again.
 *
 * Each is {kind: "wait" | "run", from, to} in seconds; a run has the tokens that were `cached` when it began.
 */
function periodsOf(request, starts, duration) {
  const end = request.ended_s === null ? duration : request.ended_s;
  const periods = [];
  let from = request.arrived_s;
  request.admissions.forEach(([step, cached], turn) => {
    const begins = starts[step];
    periods.push({ kind: "wait", from, to: begins });
    const lost = request.preemptions[turn];
    from = lost === undefined ? end : starts[lost];
    periods.push({ kind: "run", from: begins, to: from, cached });
  });
  if (from < end) periods.push({ kind: "wait", from, to: end });
  return periods.filter((period) => period.kind === "run" || period.to > period.from);
}

/** The work of a request in a step; undefined if it had none. */
function workIn(row, step) {
  let [low, high] = [0, row.work.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.work[middle][STEP] <= step) low = middle + 1;
    else high = middle;
  }
  const work = row.work[low - 1];
  return work && step < work[STEP] + work[COUNT] ? work : undefined;
}

/** The first position that a request's work covers in a step, and how many tokens it had generated before it. */
function positionIn(work, step) {
  return work[FIRST] + (step - work[STEP]) * work[TOKENS];
}

/** Tokens of a request that had come out by the end of a step. */
function generatedBy(row, step) {
  let tokens = 0;
  for (const work of row.work) {
    if (work[STEP] > step) break;
    if (work[SAMPLES]) tokens += Math.min(work[COUNT], step - work[STEP] + 1);
  }
  return Math.min(tokens, row.generated);
}

/** What a row is called: its id, and its title after it. Control characters, and those that turn text round, are shown. */
function nameOf(row) {
  const name = row.title ? `${row.id} · ${row.title}` : row.id;
  return name.replace(/\s+/g, " ").replace(/[\p{Cc}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu, "\ufffd");
}
