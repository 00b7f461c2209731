"use strict";

// The conversation: what the reader says, what comes back, and what is said when something goes wrong.

const page = JSON.parse($("data").textContent);

const turns = []; // {role, content, box}, of which an answer that broke off is none
let asking = null; // {answer, controller, box}, while an answer comes
let shownAnswer = null;
let brokenOff = null; // the box of an answer that broke off, until it is asked for again
let engineIsAway = false; // that is the trouble that is told
let keyIsWanted = false; // or that
let frame = 0;
let saidIn = null; // the text node that the answer grows in

// --- The reader's wishes ----------------------------------------------------------------------------------

/** A number in a field, or null where there is none. Throws Trouble for what is none. */
function numberIn(name, words) {
  const field = $(name);
  if (field.value.trim() === "" && !field.validity.badInput) return null;
  if (!field.checkValidity()) {
    $("settings").open = true;
    throw new Trouble("request", `${words} in the settings cannot be used: ${field.validationMessage}`);
  }
  return Number(field.value);
}

function wishes() {
  const system = $("system").value;
  const body = {
    model: watch.state.model,
    messages: [...(system.trim() ? [{ role: "system", content: system }] : []), ...turns.map(({ role, content }) => ({ role, content }))],
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    top_logprobs: 5,
    return_token_ids: true,
  };
  const given = { temperature: numberIn("temperature", "The temperature"), max_tokens: numberIn("max-tokens", "The most tokens"), seed: numberIn("seed", "The seed") };
  for (const [name, value] of Object.entries(given)) if (value !== null) body[name] = value;
  return body;
}

// --- Asking ------------------------------------------------------------------------------------------------

async function send() {
  const content = $("message").value;
  if (asking || !content.trim()) return;
  if (turns.length && turns[turns.length - 1].role === "user") {
    turns.pop().box.append(element("p", "end", "This had no answer, and the model does not see it any more."));
  }
  turns.push({ role: "user", content, box: addTurn("user", content) });
  $("message").value = "";
  await answerLast();
}

/** Ask for the answer to the last message. */
async function answerLast() {
  hideTrouble();
  if (brokenOff) brokenOff.remove();
  brokenOff = null;
  const answer = new Answer();
  const controller = new AbortController();
  const box = addTurn("assistant", "");
  box.classList.add("running");
  asking = { answer, controller, box };
  [shownAnswer, saidIn] = [answer, box.querySelector(".text").appendChild(document.createTextNode(""))];
  stripOf(answer);
  showPrompt(answer);
  showAsking();
  speak("The model answers.");
  try {
    if (!watch.state) watch.state = await (await ask("/engine", undefined, controller.signal)).json();
    const body = wishes();
    promptMessages = body.messages;
    answer.sentAt = performance.now();
    const response = await askForAnswer(body, controller.signal);
    answer.joinedAt = performance.now();
    watch.mine = `chatcmpl-${response.headers.get("x-request-id")}`;
    lookAgain();
    for await (const chunks of eventsOf(response)) {
      answer.take(chunks, watch.state ? watch.state.running : 1);
      showSoon();
    }
    end(null);
  } catch (error) {
    end(troubleOf(error, BROKEN_OFF));
    if (!(error instanceof Trouble) && error.name !== "AbortError") throw error; // a fault of the page's own
  }
}

/** The response. Where there is less room than the tokens that the settings allow, it may take all there is. */
async function askForAnswer(body, signal) {
  const path = "/v1/chat/completions";
  try {
    return await ask(path, body, signal);
  } catch (error) {
    if (!(error instanceof Trouble && error.param === "max_tokens") || !body.max_tokens) throw error;
    return ask(path, { ...body, max_tokens: null }, signal);
  }
}

/** The answer is over. What came of it stays in sight; it is part of the conversation unless it broke off. */
function end(trouble) {
  const { answer, box } = asking;
  asking = null;
  if (trouble) answer.reason = trouble.kind === "stopped" ? "stopped" : "broken";
  show();
  watch.mine = null;
  box.classList.remove("running");
  const isOurs = !trouble || trouble.kind === "stopped"; // it ended as the model or the reader wanted
  if (isOurs && answer.text) turns.push({ role: "assistant", content: answer.text, box });
  if (!answer.text && trouble) box.remove();
  else box.append(element("p", "end", endWords(answer)));
  if (!isOurs && answer.text) brokenOff = box;
  if (isOurs && !answer.text && trouble) { // stopped before there was anything: as if it had not been sent
    const last = turns.pop();
    last.box.remove();
    if (!$("message").value) $("message").value = last.content;
  }
  showAsking();
  lookAgain();
  if (trouble && trouble.kind !== "stopped") showTrouble(trouble);
  else speak(trouble ? "Stopped." : `${answer.text || "The answer is empty."}`);
}

function endWords(answer) {
  const made = counted(answer.tokens.length, "token");
  return `${ENDS[answer.reason]}: ${made}.`;
}

function stop() {
  if (asking) asking.controller.abort();
}

// --- What is seen --------------------------------------------------------------------------------------------

/** What a person or the model says, as text and nothing else. */
function addTurn(role, text) {
  $("nothing").hidden = true;
  const box = element("div", `turn ${role}`);
  const words = element("p", "text", text);
  words.dir = "auto";
  box.append(element("span", "who", role === "user" ? "You" : "The model"), words);
  $("turns").append(box);
  $("turns").scrollTop = $("turns").scrollHeight;
  return box;
}

/** At the next picture that the screen shows: tokens may come faster. */
function showSoon() {
  if (!frame) frame = requestAnimationFrame(show);
}

function show() {
  cancelAnimationFrame(frame);
  frame = 0;
  if (!shownAnswer) return;
  const log = $("turns");
  const atEnd = log.scrollTop + log.clientHeight > log.scrollHeight - 40;
  const fresh = shownAnswer.text.slice(saidIn.length);
  if (fresh) saidIn.appendData(fresh);
  if (fresh && atEnd) log.scrollTop = log.scrollHeight;
  showStrip();
  showPrompt(shownAnswer);
  const state = watch.state;
  showJourney(shownAnswer, mineIn(state), state ? state.memory : null);
}

function showAsking() {
  const focused = document.activeElement; // it must not fall to nobody with a button that goes
  $("stop").hidden = !asking;
  $("send").hidden = Boolean(asking);
  if (asking && focused === $("send")) $("stop").focus();
  if (!asking && focused === $("stop")) $("message").focus();
}

function showTrouble(trouble) {
  keyIsWanted = trouble.kind === "key";
  $("trouble").hidden = false;
  $("trouble-words").textContent = trouble.message;
  $("again").hidden = !(turns.length && turns[turns.length - 1].role === "user");
  if (trouble.kind === "key") askForKey(true);
}

function hideTrouble() {
  engineIsAway = keyIsWanted = false;
  $("trouble").hidden = true;
  $("trouble-words").textContent = "";
}

function speak(words) {
  $("spoken").textContent = words;
}

// --- The prompt ------------------------------------------------------------------------------------------------

let promptMessages = [];
let promptShown = null;

function showPrompt(answer) {
  $("prompt-details").hidden = !answer.promptIds.length;
  if (!answer.promptIds.length) return;
  $("prompt-count").textContent = counted(answer.promptIds.length, "token");
  if ($("prompt-details").open && promptShown !== answer) spellPrompt(answer);
}

/** The prompt's tokens, as the vocabulary spells them. */
async function spellPrompt(answer) {
  promptShown = answer;
  $("prompt").replaceChildren();
  try {
    const body = { messages: promptMessages, return_token_strs: true };
    const { tokens, token_strs } = await (await ask("/tokenize", body)).json();
    if (promptShown !== answer) return;
    const chips = tokens.map((id, index) => tokenChip({ id, ...spelled(token_strs[index]) }, "span"));
    for (const chip of chips) chip.setAttribute("role", "listitem");
    $("prompt").replaceChildren(...chips);
  } catch (error) { // it is not asked for again until the reader opens it again
    if (promptShown === answer) $("prompt").replaceChildren(element("p", "end", troubleOf(error, AWAY).message));
  }
}

$("prompt-details").addEventListener("toggle", () => {
  if (!$("prompt-details").open) promptShown = null;
  if (shownAnswer) showPrompt(shownAnswer);
});

// --- The key -----------------------------------------------------------------------------------------------------

function askForKey(isWrong) {
  const had = sessionStorage.getItem(KEY);
  $("key-form").hidden = false;
  if (isWrong && had) $("key-words").textContent = "That key was refused: enter another one.";
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  if (!/^[\x20-\x7e]+$/.test(key)) {
    $("key-words").textContent = "A key is made of ASCII characters: enter another one.";
    return;
  }
  sessionStorage.setItem(KEY, key);
  $("key").value = "";
  lookAgain();
});

// --- What the reader does ------------------------------------------------------------------------------------------

watch.onState = (state) => {
  if (!$("key-form").hidden) $("message").focus();
  $("key-form").hidden = true;
  $("key-words").textContent = "It is kept in this tab alone, and only until you close it.";
  $("about").textContent = `${state.model} · context of ${counted(state.max_model_len, "token")} · ${humanBytes(state.memory.weight_bytes)} of weights`;
  if (engineIsAway || keyIsWanted) hideTrouble();
  if (!state.has_chat && $("trouble").hidden) showTrouble(new Trouble("request", "This model has no chat template, so it cannot talk: ask it for completions instead."));
  if (shownAnswer) showSoon();
};

/** The engine cannot be looked at: said once, and taken back when it can. While an answer comes, that one tells. */
watch.onTrouble = (found) => {
  if (found.kind === "key") {
    $("about").textContent = "Waiting for the key.";
    askForKey(true);
    if (!$("message").value) $("key").focus(); // who is writing goes on writing
    return;
  }
  $("about").textContent = found.message;
  if (asking || !$("trouble").hidden) return;
  showTrouble(found);
  engineIsAway = true;
};

$("compose").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && asking) stop();
});
$("stop").addEventListener("click", () => {
  stop();
  $("message").focus();
});
$("again").addEventListener("click", () => {
  if (!asking) answerLast();
  $("message").focus();
});
$("new").addEventListener("click", () => {
  stop();
  newConversation($("message").value);
});

/** words: what the reader has begun to write; what was sent and stopped does not come back. */
function newConversation(words) {
  if (asking) return setTimeout(newConversation, 20, words); // until what was stopped has come to its end
  $("message").value = words;
  turns.length = 0;
  for (const box of [...$("turns").querySelectorAll(".turn")]) box.remove();
  $("nothing").hidden = false;
  hideTrouble();
  shownAnswer = null;
  stripOf(null);
  $("prompt-details").hidden = true;
  showJourney(new Answer(), null, watch.state ? watch.state.memory : null);
  for (const item of $("steps").children) item.className = "";
  speak("A new conversation.");
  $("message").focus();
  return null;
}

$("message").focus();
if (page.needs_key && !sessionStorage.getItem(KEY)) watch.onTrouble(new Trouble("key", ""));
else lookAgain();
