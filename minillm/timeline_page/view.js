"use strict";

// Which part of the time is in sight. All in seconds; nothing here touches the page.

/** A window into [0, duration] that can be moved and zoomed, down to `shortest` seconds. */
function makeView(duration, shortest) {
  const least = Math.min(Math.max(shortest, duration / 1e5), duration) || 1;
  const view = { from: 0, to: duration || 1 };

  function set(from, to) {
    const span = Math.min(Math.max(to - from, least), duration || 1);
    view.from = Math.min(Math.max(0, from), Math.max(0, duration - span));
    view.to = view.from + span;
  }

  return Object.assign(view, {
    set,
    /** Nothing is out of sight. */
    isWhole: () => view.to - view.from >= duration * 0.9999,
    whole: () => set(0, duration),
    /** A `factor` of 2 shows half as much; what is at `seconds` stays where it is. */
    zoom(factor, seconds) {
      const span = Math.min(Math.max((view.to - view.from) / factor, least), duration || 1);
      const share = (seconds - view.from) / (view.to - view.from);
      set(seconds - share * span, seconds + (1 - share) * span);
    },
    pan: (seconds) => set(view.from + seconds, view.to + seconds),
    /** Move as little as needed to have [from, to] in sight. */
    reveal(from, to) {
      if (from < view.from) view.pan(from - view.from);
      else if (to > view.to) view.pan(Math.min(to - view.to, from - view.from));
    },
  });
}

/**
 * The rows to draw: all that are there at some time of the window; where those are too many, the ones that run in it.
 *
 * Requests run in the order in which they came, more or less, so a short window has few, whatever waits behind them.
 */
function rowsInView(run, view, mostRows) {
  const there = run.rows.filter((row) => row.arrived_s <= view.to && endOf(row, run) >= view.from);
  if (there.length <= mostRows) return there;
  return there.filter((row) => row.periods.some((period) => period.kind === "run" && period.from <= view.to && period.to >= view.from));
}

function endOf(row, run) {
  return row.ended_s === null ? run.duration : row.ended_s;
}
