"use strict";

// One answer: what has come of it, and when. Times are in ms, on the clock of performance.now().

const asWholeText = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The token of an entry in logprobs. `id` may be unknown. */
function tokenOf(entry, id) {
  return { id, ...ofBytes(Uint8Array.from(entry.bytes)) };
}

function ofBytes(bytes) {
  let text = null;
  try {
    text = asWholeText.decode(bytes);
  } catch {
    // part of a character
  }
  const spelled = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return { text, bytes: spelled, special: text !== null && /^<\|?[^<>\s]+\|?>$/.test(text) };
}

/** Each byte's character in the vocabularies of byte-level BPE: its own where that can be seen, else one from U+0100 on. */
const BYTE_OF = (() => {
  const found = new Map();
  let next = 256;
  for (let byte = 0; byte < 256; byte += 1) {
    const isSeen = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    found.set(String.fromCodePoint(isSeen ? byte : next), byte);
    if (!isSeen) next += 1;
  }
  return found;
})();

/** A token by the vocabulary's spelling: bytes as characters, or (SentencePiece) characters with a mark for the space. */
function spelled(word) {
  const bytes = [...word].map((character) => BYTE_OF.get(character));
  if (bytes.every((byte) => byte !== undefined)) return ofBytes(Uint8Array.from(bytes));
  return ofBytes(new TextEncoder().encode(word.replace(/▁/g, " ")));
}

class Answer {
  constructor() {
    this.sentAt = performance.now();
    this.joinedAt = null; // the request is in the engine
    this.firstAt = null;
    this.lastAt = null;
    this.id = null;
    this.promptIds = [];
    this.cached = null; // known at the end, or from the engine
    this.tokens = []; // {token, probability, top: [[token, probability]], gap, batch}
    this.text = "";
    this.reason = null; // "stop", "length", "stopped" or "broken"
  }

  /** What came together, `batch` requests being at work. */
  take(chunks, batch) {
    const now = performance.now();
    const before = this.tokens.length;
    for (const chunk of chunks) this.takeChunk(chunk);
    const fresh = this.tokens.length - before;
    if (!fresh) return;
    // The first of an answer has no gap; those that came together share theirs.
    const gap = before ? (now - this.lastAt) / fresh : null;
    for (const one of this.tokens.slice(before)) Object.assign(one, { gap, batch });
    if (!before) this.firstAt = now;
    this.lastAt = now;
  }

  takeChunk(chunk) {
    this.id = chunk.id;
    if (chunk.prompt_token_ids) this.promptIds = chunk.prompt_token_ids;
    if (chunk.usage) this.cached = chunk.usage.prompt_tokens_details.cached_tokens;
    for (const choice of chunk.choices) {
      this.text += choice.delta.content || "";
      if (choice.finish_reason) this.reason = choice.finish_reason;
      const entries = choice.logprobs ? choice.logprobs.content : [];
      entries.forEach((entry, index) => {
        const top = entry.top_logprobs.map((one) => [tokenOf(one, null), Math.exp(one.logprob)]);
        this.tokens.push({ token: tokenOf(entry, choice.token_ids[index]), probability: Math.exp(entry.logprob), top });
      });
    }
  }

  /** Mean time per token after the first, in seconds. */
  get tpot() {
    return this.tokens.length > 1 && this.lastAt > this.firstAt ? (this.lastAt - this.firstAt) / 1e3 / (this.tokens.length - 1) : null;
  }

  /** Bytes that a decode pass reads: weights, and the keys and values of a context of so many tokens. */
  static bytesPerPass(memory, context) {
    return memory.weight_bytes + memory.kv_bytes_per_token * context;
  }

  /** The least time per token that memory allows, in seconds: of the mean pass so far. */
  leastTpot(memory) {
    if (!memory || !memory.bandwidth_bytes_per_s) return null;
    const context = this.promptIds.length + this.tokens.length / 2;
    return Answer.bytesPerPass(memory, context) / memory.bandwidth_bytes_per_s;
  }
}
