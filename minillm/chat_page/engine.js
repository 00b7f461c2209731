"use strict";

// The engine as it is now: its blocks, and those who share it. It is asked again and again, and not while nobody looks.

const BUSY_MS = 350;
const IDLE_MS = 1500;
const ROWS = 40; // requests in the table

const watch = { state: null, mine: null, timer: 0, onState: () => {}, onTrouble: () => {} };

/** The request of this page, if the engine has it. */
function mineIn(state) {
  return (state && watch.mine && state.requests.find((one) => one.id === watch.mine)) || null;
}

/** Look now, and then every now and then. */
function lookAgain() {
  clearTimeout(watch.timer);
  watch.timer = 0;
  if (!document.hidden) look();
}

async function look() {
  let wait = IDLE_MS;
  try {
    const state = await (await ask("/engine")).json();
    watch.state = state;
    showEngine(state);
    watch.onState(state);
    if (watch.mine || state.running || state.waiting) wait = BUSY_MS;
  } catch (error) {
    watch.onTrouble(troubleOf(error, AWAY));
    if (error.kind === "key") return; // there is no use in asking before there is one
  }
  clearTimeout(watch.timer);
  watch.timer = document.hidden ? 0 : setTimeout(look, wait);
}

document.addEventListener("visibilitychange", lookAgain);

function showEngine(state) {
  const mine = mineIn(state);
  showBlocks(state.blocks, mine);
  showRequests(state, mine);
}

function showBlocks(blocks, mine) {
  const { total, used, shared, kept, block_size, per_cell } = blocks;
  const yours = mine ? `, ${humanCount(mine.blocks)} of them yours` : "";
  const keptWords = kept ? ` ${humanCount(kept)} more are kept: free for others, but what they hold can still be found.` : "";
  const both = shared ? `; ${humanCount(shared)} are shared` : "";
  $("blocks-words").textContent =
    `${humanCount(used)} of ${counted(total, "block")} in use${yours}${both}.${keptWords}`;
  const square = per_cell === 1 ? "A square is one block" : `A square is ${humanCount(per_cell)} blocks`;
  $("blocks-note").textContent =
    `${square}, a block is room for the keys and values of ${counted(block_size, "token")}. An answer takes a block when it has filled the last one.`;
  const cells = $("blocks");
  while (cells.childElementCount > blocks.used_by_cell.length) cells.lastElementChild.remove();
  while (cells.childElementCount < blocks.used_by_cell.length) cells.append(element("i"));
  const own = new Set(mine ? mine.cells : []);
  [...cells.children].forEach((cell, index) => paintCell(cell, index, blocks, own.has(index)));
}

function paintCell(cell, index, blocks, isMine) {
  const size = Math.min(blocks.per_cell, blocks.total - index * blocks.per_cell);
  const [shared, used, kept] = [blocks.shared_by_cell[index], blocks.used_by_cell[index], blocks.kept_by_cell[index]];
  const look = `${shared} ${used} ${kept}`;
  cell.classList.toggle("mine", isMine);
  if (cell.dataset.look === look) return;
  cell.dataset.look = look;
  for (const [name, count] of [["--s", shared], ["--u", used], ["--k", used + kept]]) cell.style.setProperty(name, `${(count / size) * 100}%`);
}

function showRequests(state, mine) {
  const { running, waiting, max_batch_size, steps } = state;
  const others = running + waiting - (mine ? 1 : 0);
  const last = steps[steps.length - 1];
  const step = last ? ` The last step computed ${counted(last.tokens, "token")} of ${counted(last.requests, "request")} in ${humanSeconds(last.seconds)}.` : "";
  $("batch-words").textContent = `${humanCount(running)} of at most ${humanCount(max_batch_size)} run, ${humanCount(waiting)} wait.${step}`;
  $("requests").hidden = !running && !waiting;
  const rows = [...(mine ? [mine] : []), ...state.requests.filter((one) => one !== mine)].slice(0, ROWS);
  $("requests").tBodies[0].replaceChildren(...rows.map((one) => requestRow(one, one === mine)));
  const left = running + waiting - rows.length;
  if (left > 0) {
    const row = element("tr");
    const cell = element("td", "", `and ${counted(left, "more request")}`);
    cell.colSpan = 6;
    row.append(cell);
    $("requests").tBodies[0].append(row);
  }
  $("requests").dataset.others = String(others);
}

function requestRow(one, isMine) {
  const row = element("tr", isMine ? "mine" : "");
  const generated = `${humanCount(one.generated_tokens)} of ${humanCount(one.max_tokens)}`;
  const cells = [isMine ? "yours" : "another's", one.state === "running" ? (one.generated_tokens ? "decodes" : "prefill") : "waits"];
  cells.push(humanCount(one.prompt_tokens), humanCount(one.computed_tokens), generated, humanCount(one.blocks));
  row.append(...cells.map((text) => element("td", "", text)));
  if (one.cached_tokens) row.children[2].append(element("span", "found", ` (${humanCount(one.cached_tokens)} found)`));
  return row;
}
