"use strict";

// The server, as the page asks it; and what goes wrong, as one sentence.

const KEY = "minillm-api-key"; // in sessionStorage: gone with the tab

/**
 * Something went wrong; the message is for the reader. kind: "key", "away", "request", "server" or "stopped". param:
 * the field of the request that it is about, where it is about one.
 */
class Trouble extends Error {
  constructor(kind, message, param) {
    super(message);
    this.kind = kind;
    this.param = param;
  }
}

const AWAY = "The server cannot be reached: look whether it still runs.";
const BROKEN_OFF = "The answer broke off: the connection to the server was lost.";

/** Ask for a path; with a body, by POST. Returns the response of a 200. Throws Trouble. */
async function ask(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const wish = { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store" };
  if (body !== undefined) wish.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, wish);
  } catch (error) {
    throw troubleOf(error, AWAY);
  }
  if (response.ok) return response;
  throw refusal(response.status, await errorIn(response));
}

function troubleOf(error, otherwise) {
  if (error instanceof Trouble) return error;
  return error.name === "AbortError" ? new Trouble("stopped", "Stopped.") : new Trouble("away", otherwise);
}

async function errorIn(response) {
  try {
    return (await response.json()).error;
  } catch {
    return { message: `it answered with status ${response.status}` };
  }
}

function refusal(status, { message: told, param }) {
  if (status === 401) return new Trouble("key", "The server wants its API key: enter it above.");
  if (status === 429) return new Trouble("server", `The server is full: ${told}.`);
  if (status === 503) return new Trouble("server", `The server takes no requests now: ${told}.`);
  if (status >= 500) return new Trouble("server", `The server could not answer: ${told}.`);
  return new Trouble("request", `The server refused this: ${told}.`, param);
}

/** The JSON of a stream's events, in lists: those that came together. Throws Trouble for a stream without its end. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw troubleOf(error, BROKEN_OFF);
      });
      if (done) throw new Trouble("away", BROKEN_OFF);
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      const found = parts.map((part) => part.replace(/^data: /, ""));
      const events = found.filter((data) => data !== "[DONE]").map((data) => JSON.parse(data));
      const failed = events.find((event) => event.error);
      yield events.filter((event) => !event.error);
      if (failed) throw new Trouble("server", `The answer broke off: ${failed.error.message}.`);
      if (found.includes("[DONE]")) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // nobody reads on: the server must not go on either
  }
}
