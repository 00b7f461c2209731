# %% [markdown]
# # Notebook 8: Back to text
#
# Beside [chapter 8](../chapters/08-back-to-text.md). You stream text in the ways that suggest themselves and see each
# of them break, then in the way that does not; you do the same with stop strings; and you count what it costs. The
# exercises are at the end, with a cell for each.
#
# The notebook runs from top to bottom on a CPU in about half a minute, and on a CUDA GPU as it stands.

# %%
import random

import matplotlib.pyplot as plt
import torch

from minillm.decode import decode
from minillm.detokenizer import Detokenizer, StreamDecoder, detokenize
from minillm.device import clock, pick_device
from minillm.generation import Generation
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.prefill import prefill
from minillm.sampler import SamplingParams
from minillm.stop_strings import StopMatcher, first_stop, held_length
from minillm.utf8 import Utf8Decoder

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)

# %% [markdown]
# ## A token is not a character
#
# Four things to count in a text: graphemes, which is what a reader sees as one sign; the code points of Unicode; the
# bytes of UTF-8; and the model's tokens. In English they nearly agree. Elsewhere:

# %%
signs = {"e": 1, "é": 1, "naïve": 5, "日本語": 3, "🙂": 1, "🇫🇷": 1, "👨\u200d👩\u200d👧": 1}
print("graphemes   code points   bytes   tokens   the tokens' bytes")
for sign, seen in signs.items():
    sign_ids = tokenizer.encode(sign)
    parts = " | ".join(tokenizer.id_to_bytes(token_id).hex(" ").upper() for token_id in sign_ids)
    print(f"{seen:9}   {len(sign):11}   {len(sign.encode()):5}   {len(sign_ids):6}   {sign}: {parts}")

# %% [markdown]
# One flag is two code points, eight bytes, six tokens; and none of those six is a character. A family is three people
# and two invisible joiners, thirteen tokens. What comes out of the decode loop is bytes, cut wherever the tokenizer's
# merges happened to end.
#
# ## Broken: each token by itself
#
# The obvious way to stream: decode the new token, show it.

# %%
text = "👨\u200d👩\u200d👧 naïve 日本語 🇫🇷"
ids = tokenizer.encode(text)
assert tokenizer.decode(ids) == text  # all ids at once: right

one_by_one = [tokenizer.decode([token_id]) for token_id in ids]
wrong = "".join(one_by_one).count("\ufffd")
print(f"wanted: {text}")
print(f"shown:  {''.join(one_by_one)}")
print(f"{len(text)} code points in {len(ids)} tokens; {wrong} replacement characters on the user's screen")
assert wrong > len(text)

# %% [markdown]
# ## Broken: decode everything, show what is new
#
# The second idea: after each token decode *all* ids, which is right, and show what is longer than before.


# %%
def by_difference(ids, wait):
    """Pieces by decoding everything each time (`wait` while it ends in U+FFFD), and how many bytes were decoded."""
    shown, pieces, decoded = "", [], 0
    for count in range(1, len(ids) + 1):
        whole = tokenizer.decode(ids[:count])
        decoded += len(b"".join(map(tokenizer.id_to_bytes, ids[:count])))
        piece = "" if wait and whole.endswith("\ufffd") else whole[len(shown) :]
        shown += piece
        pieces.append(piece)
    return pieces, decoded


pieces, _ = by_difference(ids, wait=False)
print("show at once:          ", "".join(pieces))
assert "".join(pieces) != text
pieces, _ = by_difference(ids, wait=True)
print("wait while it ends in �:", "".join(pieces))
assert "".join(pieces) == text

# %% [markdown]
# At once, it fails in a way worth understanding. The first token of the flag is `20 F0 9F`, and makes the text two
# characters longer: a space and a `�`. Both are shown. When the third token completes the letter 🇫, the whole is *as
# long as before*, so nothing is new, and the `�` stays for ever. To wait for as long as the end is a `�` repairs that,
# and many programs stream this way. Two things are wrong with it. It takes a `�` for "not yet", and sometimes it is
# "never":

# %%
bad = ids[1]
assert tokenizer.id_to_bytes(bad) == b"\x91"  # in its place a part of 👨; without a beginning before it, nothing
pieces, _ = by_difference([*tokenizer.encode("so"), *[bad] * 4], wait=True)
print("waiting:", pieces)
decoder = StreamDecoder(tokenizer)
ours = [decoder.add(token_id) for token_id in [*tokenizer.encode("so"), *[bad] * 4]]
print("ours:   ", ours)
assert pieces[1:] == [""] * 4
assert ours[1:] == ["\ufffd"] * 4

# %% [markdown]
# And it decodes the whole text again for every token. You know that pattern from chapter 5. Count the bytes:

# %%
long_ids = tokenizer.encode("Streaming is harder than it looks: 日本語 🙂. " * 50)
_, decoded = by_difference(long_ids, wait=True)
once = len(tokenizer.decode(long_ids).encode())
print(f"{len(long_ids)} tokens, {once:,} bytes of text; decoded {decoded:,} bytes, {decoded / once:.0f} times as many")
assert decoded > len(long_ids) / 3 * once

# %% [markdown]
# ## A small state machine
#
# *Exercises 8.1 and 8.2 ask for what comes next: do them first, if you want to find it yourself. Their cells are at the
# end.*
#
# A character's first byte says how many bytes it has. So the end of what came is always in one of two states: whole, or
# the beginning of a character that can still be completed, which is one to three bytes. Show everything before that
# beginning, hold it, and put the next token's bytes behind it. Nothing else is remembered.

# %%
decoder = StreamDecoder(tokenizer)
rows = []
print("token's bytes   held afterwards   shown")
for token_id in ids:
    piece = decoder.add(token_id)
    rows.append((tokenizer.id_to_bytes(token_id), decoder.held, piece))
    print(f"{rows[-1][0].hex(' ').upper():<16}{decoder.held.hex(' ').upper():<18}{piece!r}")
    assert len(decoder.held) <= 3
assert "".join(piece for *_, piece in rows) == text
assert decoder.flush() == ""

# %% tags=["measured"]
held = [len(held) for _, held, _ in rows]
figure, axes = plt.subplots(figsize=(9, 3))
axes.bar(range(1, len(rows) + 1), held, color=["C1" if n else "C0" for n in held])
axes.axhline(3, color="gray", linestyle="dashed")
axes.set(
    xlabel="token",
    ylabel="bytes held",
    ylim=(0, 3.4),
    yticks=range(4),
    title="never more than 3: the longest character has 4",
)
plt.show()

# %% [markdown]
# Never more than three bytes, for four complete the longest character. What is held when the tokens end is also what
# you lose by forgetting to flush.
#
# Now the claim that matters: *joined, the stream is the text*, for any bytes, cut anywhere. Not only for good text:

# %%
chance = random.Random(8)
alphabet = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF]
replaced = 0
for _ in range(5_000):
    data = bytes(chance.choices(alphabet, k=12))
    cuts = sorted(chance.choices(range(13), k=4))
    chunks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, 12], strict=True)]
    machine = Utf8Decoder()
    streamed = "".join(map(machine.decode, chunks)) + machine.flush()
    assert streamed == data.decode(errors="replace")
    replaced += streamed.count("\ufffd")
print(f"5,000 strings of 12 bytes in 5 chunks: every stream is the text, {replaced:,} replacement characters included")

for _ in range(1_000):
    some_ids = [chance.randrange(tokenizer.vocab_size) for _ in range(12)]
    decoder = StreamDecoder(tokenizer)
    assert "".join(map(decoder.add, some_ids)) + decoder.flush() == tokenizer.decode(some_ids)
print("1,000 sequences of 12 random tokens: every stream is what decoding them at once gives")

# %% [markdown]
# And on what the model really says. The two best logits are far enough apart at each step that your machine will choose
# the same tokens.


# %%
def generate(prompt_ids, **settings):
    """Prefill and decode, greedily: the steps as they come."""
    cache = KVCache(model.config, 256, device=device)
    logits = prefill(model, prompt_ids, cache)
    params = SamplingParams(temperature=0, logprobs=2, **settings)
    return decode(model, logits, cache, params, prompt_ids=prompt_ids)


def ask(question):
    """The ids of a question, as the model was trained to read one."""
    return tokenizer.encode_chat([{"role": "user", "content": question}])


steps = list(generate(ask("Repeat after me: 🎉🚀❤️🔥"), max_tokens=30))
assert min(step.top_logprobs[0][1] - step.top_logprobs[1][1] for step in steps) > 0.1
print("token by token:", " ".join(repr(tokenizer.decode([step.token_id])) for step in steps))
print("streamed:      ", " ".join(repr(piece.text) for piece in detokenize(steps, tokenizer)))

# %% [markdown]
# Thirteen tokens for four signs, five code points; and one token to say that this was all. The heart is two of them: a
# heart, and an invisible request to draw it in colour. A user who reads along sees it change its face.
#
# ## Stop strings
#
# A base model that has seen chats goes on with the other person's part, unless somebody stops it at `\n\nUser:`. Here
# are the tokens in which that arrives:

# %%
prompt = "User: Hello!\n\nAssistant: Hi, how can I help?\n\nUser: What is the capital of France?\n\nAssistant:"
chat_steps = list(generate(tokenizer.encode(prompt), max_tokens=20))
assert min(step.top_logprobs[0][1] - step.top_logprobs[1][1] for step in chat_steps) > 0.02
arriving = [tokenizer.decode([step.token_id]) for step in chat_steps]
print(arriving)

# %% [markdown]
# The stop string is in no token: it is spread over four of them. Three ways to look for it:


# %%
def within_a_token(pieces, stop):
    """Broken: looks into each piece by itself."""
    for piece in pieces:
        if stop in piece:
            return
        yield piece


def look_back(pieces, stop):
    """Broken: shows each piece at once, and looks whether the text so far has the stop string."""
    so_far = ""
    for piece in pieces:
        so_far += piece
        if stop in so_far:
            return
        yield piece


def hold_back(pieces, stop):
    """Ours."""
    matcher = StopMatcher([stop])
    for piece in pieces:
        yield matcher.add(piece)
        if matcher.matched:
            return
    yield matcher.flush()


STOP = "\n\nUser:"
for way in (within_a_token, look_back, hold_back):
    print(f"{way.__name__:<16}{''.join(way(arriving, STOP))!r}")
assert STOP in "".join(within_a_token(arriving, STOP))
assert "".join(look_back(arriving, STOP)).endswith("\n\nUser")
assert "User" not in "".join(hold_back(arriving, STOP))

# %% [markdown]
# The first runs on into a conversation with itself. The second stops, with `\n\nUser` on the screen, and what has been
# streamed cannot be taken back. The third waits wherever the end of the text could be the beginning of the stop string.
# How much does that hold back, and is it more than need be?

# %%
forced = (
    "It is Paris.\n\nUse it well, and\n\nUser guides say so.\n\nUser: thanks"  # ends that begin the stop string, and
)
forced_pieces = [tokenizer.decode([token_id]) for token_id in tokenizer.encode(forced)]  # one that is it
matcher = StopMatcher([STOP])
came, seen, came_at, seen_at = 0, 0, [], []
print("piece        held        shown")
for piece in forced_pieces:
    shown = matcher.add(piece)
    came, seen = came + len(piece), seen + len(shown)
    came_at.append(came)
    seen_at.append(seen)
    print(f"{piece!r:<13}{matcher.held!r:<12}{shown!r}")
    if matcher.matched:
        break
assert matcher.matched == STOP
assert seen == forced.index(STOP + " thanks")

# %% tags=["measured"]
numbers = range(1, len(came_at) + 1)
figure, axes = plt.subplots(figsize=(9, 3.6))
axes.step(numbers, came_at, where="mid", label="has come")
axes.step(numbers, seen_at, where="mid", label="is shown")
axes.step(
    numbers, [max(0, n - len(STOP) + 1) for n in came_at], where="mid", linestyle="dotted", label="always 6 behind"
)
axes.fill_between(numbers, seen_at, came_at, step="mid", alpha=0.2)
axes.set(xlabel="token", ylabel="characters", title="what has come, and what is shown")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# The two lines are one, but for the moments in which the text flirts with the stop string. `\n\nUser` guides held six
# characters back for one token, and then released all of them at once. At the end it was the stop string, and the held
# text was never shown. A simple rule, "always stay len(stop) - 1 behind", is safe too, and is the dotted line: late
# everywhere.
#
# The bound is the same for both, `len(stop) - 1`. How far from it is an ordinary text?


# %%
def characters_held(pieces, stop):
    """How many characters are held after each piece."""
    matcher = StopMatcher([stop])
    held = []
    for piece in pieces:
        matcher.add(piece)
        held.append(len(matcher.held))
    return held


ordinary = (
    "The rule is short. Hold what could still become a stop string, and show the rest.\n\nNothing more is needed:\n" * 6
)
ordinary_pieces = [tokenizer.decode([token_id]) for token_id in tokenizer.encode(ordinary)]
print("stop string      bound   held at most   held on average   tokens with nothing held")
for stop in (STOP, "END", "```", "The end", "\n\n\n"):
    counts = characters_held(ordinary_pieces, stop)
    free = counts.count(0) / len(counts)
    assert max(counts) <= len(stop) - 1
    print(f"{stop!r:<14}{len(stop) - 1:8}{max(counts):15}{sum(counts) / len(counts):18.2f}{free:27.0%}")
worst = max(characters_held(["\n", "\n", "U", "ser"], STOP))
assert worst == len(STOP) - 1
print(f"and on a text made for it: {worst} of {len(STOP) - 1}")

# %% [markdown]
# Exactly what is held is the longest end of the text that begins a stop string. Check that on random texts over two
# letters, where ends overlap in every way: what is held begins a stop string, and the same text, with any stop string
# still to come, is cut right, however it is cut into pieces.

# %%
for _ in range(3_000):
    stops = ["".join(chance.choices("ab", k=chance.randint(2, 4))) for _ in range(2)]
    letters = "".join(chance.choices("ab", k=10))
    hit = first_stop(letters, stops)
    whole = letters if hit is None else letters[: hit[0]]
    matcher = StopMatcher(stops)
    start, streamed = 0, ""
    while start < len(letters):
        size = chance.randint(1, 4)
        streamed += matcher.add(letters[start : start + size])
        start += size
        assert any(stop.startswith(matcher.held) for stop in stops)
        assert whole.startswith(streamed), "something was shown that had to be taken back"
    assert streamed + matcher.flush() == whole
assert held_length("aaa", ["aab"]) == 2  # not three: "aaa" begins no stop string, its last two letters do
print("3,000 texts, any cuts: nothing is shown too early, and nothing is lost")

# %% [markdown]
# ## Why it ended
#
# The last piece says why. Here are all the reasons there are, on one question:


# %%
def ending(question, stop=(), **settings):
    """The text, the last piece and its reason."""
    pieces = list(detokenize(generate(ask(question), **settings), tokenizer, stop))
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    return "".join(piece.text for piece in pieces), pieces[-1]


question = "Reply with three emojis."
eos_text, eos = ending("Repeat after me: 🎉🚀❤️🔥", max_tokens=30)
length_text, length = ending(question, max_tokens=8)
stop_text, stopped = ending(question, stop=["🌟🌟🌟"], max_tokens=30)

print(f"the model said so    {eos.finish_reason:<8}{eos.text!r:<6}{eos_text!r}")
print(f"max_tokens           {length.finish_reason:<8}{length.text!r:<6}{length_text!r}")
print(f"a stop string        {stopped.finish_reason:<8}{stopped.text!r:<6}{stop_text!r}")
assert (eos.finish_reason, length.finish_reason, stopped.finish_reason) == ("stop", "length", "stop")
assert length.text == "\ufffd"  # two bytes of the third star: flushed, not forgotten
assert stop_text == ""  # two stars were held, and then the third came

# %% [markdown]
# The fourth is for a request that was stopped from outside: the user hung up, or pressed Ctrl-C. Take five pieces, and
# go:

# %%
cache = KVCache(model.config, 256, device=device)
params = SamplingParams(temperature=0, max_tokens=30)
request = Generation(model, tokenizer, ask(question), params, cache)
for count, _ in enumerate(request, start=1):
    if count == 5:
        break
result = request.completion()
print(f"somebody left        {result.finish_reason:<8}{result.text!r}")
assert result.finish_reason == "abort"
assert result.text.endswith("\ufffd")  # held when it was stopped; nothing comes that could complete it

# %% [markdown]
# ## What it costs
#
# Two machines, for every token. Against what? Against the forward pass that made it.

# %% tags=["measured"]
timed_ids = tokenizer.encode("Streaming is harder than it looks: 日本語 🙂. " * 40)[:600]


class Token:
    """A step without a model."""

    finish_reason, logprob = None, 0.0

    def __init__(self, token_id):
        self.token_id = token_id


def microseconds(work, count):
    """The best of five runs, for each of `count` tokens."""
    best = min(_timed(work) for _ in range(5))
    return 1e6 * best / count


def _timed(work):
    started = clock(device)
    work()
    return clock(device) - started


def both_machines():
    detokenizer = Detokenizer(tokenizer, [STOP, "END"])
    for step in timed_steps:
        detokenizer.piece_of(step)


timed_steps = [Token(token_id) for token_id in timed_ids]
ours_us = microseconds(both_machines, len(timed_ids))
all_again_us = 1e6 * _timed(lambda: by_difference(timed_ids, wait=True)) / len(timed_ids)
passes = sorted(step.forward_s for step in chat_steps[1:])
pass_us = 1e6 * passes[len(passes) // 2]
print(f"both machines           {ours_us:9.1f} µs per token, {ours_us / pass_us:.3%} of a forward pass")
print(f"decode everything again {all_again_us:9.1f} µs per token, over {len(timed_ids)} tokens, and growing")
print(f"a forward pass          {pass_us:9.0f} µs")
assert ours_us < pass_us / 20

# %% tags=["measured"]
figure, axes = plt.subplots(figsize=(9, 2.4))
names = ["both machines", "everything again", "a forward pass"]
axes.barh(names, [ours_us, all_again_us, pass_us], color=["C0", "C1", "gray"])
axes.set(xscale="log", xlabel="µs per token")
axes.invert_yaxis()
plt.show()

# %% [markdown]
# Right text costs some microseconds per token, and the pass that it waits for costs thousands of times more. There is
# no reason to be wrong for the sake of speed. The cost that a user feels is another one: the characters that are held,
# for as long as it takes the next token to come.

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 8: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("8.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch08.py`: from there
# `--mine` runs the engine on it, and `!minillm grade 8` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
from collections.abc import Sequence

from minillm.detokenizer import Piece, Step
from minillm.exercises import check, hint, todo


# %%
def unfinished_length(data: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of a character that later bytes can still complete?

    A character of UTF-8 is one to four bytes, and only these are well formed:

        first byte   length   second byte               third, fourth
        00 to 7F     1
        C2 to DF     2        80 to BF
        E0           3        A0 to BF                  80 to BF
        E1 to EC     3        80 to BF                  80 to BF
        ED           3        80 to 9F                  80 to BF
        EE and EF    3        80 to BF                  80 to BF
        F0           4        90 to BF                  80 to BF
        F1 to F3     4        80 to BF                  80 to BF
        F4           4        80 to 8F                  80 to BF

    The bytes 61 F0 9F 99 end in three of an emoji's four: 3. In 61 F0 9F 99 82 the fourth is there: 0. And 61 F0 80 can
    never become a character, whatever comes: 0 again, for it is not worth waiting for. Of what stands before that end,
    invalid bytes included, nothing is asked. Return 0, 1, 2 or 3.

    About 12 lines, with the table; there are shorter ways.
    """
    todo("8.1")


check("8.1", unfinished_length)  # and hint("8.1"), when you are stuck


# %%
def decode(self, data: bytes) -> str:
    """`Utf8Decoder.decode`: the bytes of one more token come in, and text goes out as soon as it is certain.

    self is the decoder, and this function its method. It has one attribute, which you read and set:

        self.held       bytes: what came in and was not shown yet, b"" at the start

    Show whole characters at once; hold the beginning of one that could still be completed, as 8.1 says, and not a byte
    more. Bytes that can no longer become a character are shown as U+FFFD, the replacement character, by
    `.decode(errors="replace")`: never an exception. All that you return, joined, and then what is held, decoded in
    the same way when the text is over, must be what decoding all bytes at once gives.

    data may be empty, may end inside a character, and may have the ends of one and the beginning of another.

    About 4 lines. You may call your 8.1.
    """
    todo("8.2")


check("8.2", decode)  # and hint("8.2"), when you are stuck


# %%
def held_length(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text` must be held back, because they could be the beginning of a stop string?

    text: what is known so far; there is no whole stop string in it. stops: the stop strings, none of them empty; there
    may be none at all.

    With the stop "END", of "the EN" two characters are held, of "the E" one, of "the ENd" none: whatever comes, no stop
    string begins in there any more. Hold the longest end that begins any of the stop strings: as little as is safe.

    About 4 lines.
    """
    todo("8.3")


check("8.3", held_length)  # and hint("8.3"), when you are stuck


# %%
def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where does the first stop string in `text` begin, and which is it? (start, stop), or None if there is none.

    The *first* is the one that is complete first, for someone who reads along: the one whose last character comes
    first. Of several that end at the same place, it is the longest.

    With the stops "abcd" and "bc", first_stop("xabcd", ...) is (2, "bc"): when the c has come, "bc" is complete, and
    nobody knows yet whether a d will follow. With "bc" and "abc" it is (1, "abc").

    stops: none of them empty, in any order, perhaps one of them twice; there may be none at all.

    About 6 lines.
    """
    todo("8.4")


check("8.4", first_stop)  # and hint("8.4"), when you are stuck


# %%
def add(self, text: str) -> str:
    """`StopMatcher.add`: one more piece of text comes in; what is safe to show goes out.

    self is the matcher, and this function its method. Its attributes:

        self.stops      the stop strings, a tuple; perhaps empty
        self.held       text that came in and was not shown, because it could be the beginning of a stop string; "" at
                        the start. You set it.
        self.matched    the stop string that has ended the text; None at the start, and for as long as there is none.
                        You set it.

    Pieces are cut anywhere: a stop string may begin in one and end three pieces later, and the result must not depend
    on the cuts. When a stop string is complete, show what stands before it, keep what it was in `self.matched`, and
    hold nothing. After that, return "" for whatever comes.

    About 9 lines, with 8.3 and 8.4, which you may call.
    """
    todo("8.5")


check("8.5", add)  # and hint("8.5"), when you are stuck


# %%
def piece_of(self, step: Step) -> Piece:
    """`Detokenizer.piece_of`: one step of the decode loop comes in; its piece of text goes out, with the finish reason.

    self is the detokenizer of one request, and this function its method:

        self.decoder.add(token_id)      the text that a token has made certain: whole characters only
        self.decoder.flush()            what the decoder still held, once
        self.matcher.add(text)          the part of a text that is safe to show: no stop string can begin in it
        self.matcher.flush()            what the matcher still held, once
        self.matcher.matched            the stop string that has been found, or None

    step: its `token_id`, and its `finish_reason`. That is None while the loop goes on; "stop" if this very token ends
    the sequence, and then it is no part of the text; "length" if this is the last token for which there is room.

    Return Piece(text, step, finish_reason). A found stop string is a reason too, "stop", whatever the step says. The
    piece with a reason is the request's last: nothing comes that could decide about what is still held, so all of it
    goes out, from both machines. The replacement character of a broken end may complete a stop string.

    About 8 lines.
    """
    todo("8.6")


check("8.6", piece_of)  # and hint("8.6"), when you are stuck
