# %% [markdown]
# # Notebook 17: Serving on a port
#
# Beside [chapter 17](../chapters/17-serving.md). You start a server inside of this notebook, out of the parts that
# `python -m minillm.serve` has, and talk to it: byte by byte through a socket, with OpenAI's own client, with several
# clients at once. You hang up in the middle of an answer and look for what is left behind, fill the queue, read the
# metrics, and end the server while somebody still reads. Last, you measure what all this costs per token.
#
# The notebook runs from top to bottom on a CPU in about a minute, and on a CUDA GPU as it stands.

# %%
import asyncio
import contextlib
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import mean, median

import httpx
import matplotlib.pyplot as plt
import openai
from prometheus_client.parser import text_string_to_metric_families

from minillm import LLM, SamplingParams
from minillm.device import pick_device
from minillm.engine.async_engine import AsyncEngine
from minillm.machine.limits import measure_limits
from minillm.machine.roofline import decode_work
from minillm.machine.shape import shape_of
from minillm.machine.waiting import longest_queue
from minillm.server.app import make_app
from minillm.server.event_stream import EventReader
from minillm.server.histogram import quantile
from minillm.server.lifecycle import Lifecycle, end, new_server
from minillm.server.load import new_engine
from minillm.server.metrics import EngineMetrics
from minillm.server.prepare import Served
from minillm.server.service import Service
from minillm.server.settings import Settings

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
llm = LLM(MODEL, device=device, dtype="float32")
KV_BYTES = 2**27  # for the cache of each server

# %% [markdown]
# ## A model on the event loop
#
# Begin without a server, with the one mistake that everything else is built to avoid. An event loop serves many
# clients because each asks little of it, and gives it back at once. A model gives nothing back until its pass is over.
#
# Here is a loop with a heart: it beats every 10 ms, and notes how late it was. Meanwhile a prompt of 300 tokens is
# read and 10 tokens are written, first on the loop itself, then on the engine's own thread.

# %% tags=["measured"]
PROMPT = (llm.tokenizer.encode("The quick brown fox jumps over the lazy dog, and nobody knows why. ") * 30)[:300]
PARAMS = SamplingParams(max_tokens=10, ignore_eos=True)


async def heart(late_s):
    """Beat every 10 ms, for ever; write down how late each beat comes."""
    while True:
        due = time.perf_counter() + 0.01
        await asyncio.sleep(0.01)
        late_s.append(time.perf_counter() - due)


async def on_the_loop(engine, step_s):
    """The engine's steps, called by the loop."""
    engine.add(PROMPT, PARAMS)
    while engine.has_work:
        started = time.perf_counter()
        engine.step()
        step_s.append(time.perf_counter() - started)
        await asyncio.sleep(0)


async def on_a_thread(engine, step_s):
    """The same request, through the engine's own thread."""
    async with AsyncEngine(engine, llm.tokenizer) as serving:
        await serving.generate(PROMPT, PARAMS)


def lateness(work):
    """How late the heart beat while `work` was done, and how long the steps took. In a loop of its own."""
    late_s, step_s, engine = [], [], new_engine(llm, kv_bytes=KV_BYTES)

    async def both():
        beating = asyncio.create_task(heart(late_s))
        await asyncio.sleep(0.05)
        await work(engine, step_s)
        beating.cancel()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, both()).result()
    return late_s, step_s


blocked, step_s = lateness(on_the_loop)
free, _ = lateness(on_a_thread)
print(f"on the loop    {len(blocked):4d} beats, the latest {1e3 * max(blocked):7.1f} ms late")
print(f"on a thread    {len(free):4d} beats, the latest {1e3 * max(free):7.1f} ms late")
print(f"the longest step took {1e3 * max(step_s):.1f} ms")
assert max(blocked) > 0.9 * max(step_s) - 0.01, "nothing beats while the loop computes"

# %% [markdown]
# While the model computes on the loop, nobody is accepted, nobody is sent what is there for them, nobody who hangs up
# is noticed, and whoever watches over the server is told nothing. On a thread of its own, the model lets the loop beat:
# PyTorch gives Python's lock away while it multiplies.
#
# ## A server in a thread
#
# So a server is two threads and a few layers. Here they are put together, as `python -m minillm.serve` does it:


# %%
class Here:
    """A server that runs: where it is, what its engine has done, and how it is told to end."""

    def __init__(self, port, steps, loop, stop):
        self.url, self.port, self.steps = f"http://127.0.0.1:{port}", port, steps
        self._loop, self._stop = loop, stop

    def loop_s(self):
        """Processor seconds that the event loop's thread has used so far."""

        async def used():
            return time.thread_time()

        return asyncio.run_coroutine_threadsafe(used(), self._loop).result()

    def stop(self, grace_s):
        """What SIGTERM does: no new requests, `grace_s` seconds for those that run, an end for the rest."""
        asyncio.run_coroutine_threadsafe(self._stop(grace_s), self._loop).result()


@contextlib.contextmanager
def server(settings=None, max_batch_size=8):
    """A server on a free port of this machine, for as long as the `with` lasts."""
    ready = threading.Event()
    found, steps = [], []  # steps: (when the step was over, its record)

    async def main():
        metrics, lifecycle = EngineMetrics(MODEL), Lifecycle()

        def observe(record):
            metrics.observe(record)
            steps.append((time.perf_counter(), record))

        engine = new_engine(llm, max_batch_size, KV_BYTES, observer=observe)
        metrics.watch(engine)
        async with AsyncEngine(engine, llm.tokenizer) as serving:  # the thread of the model
            service = Service(serving, Served.on(engine, MODEL, llm.tokenizer), settings or Settings())
            http = new_server(make_app(service, metrics, lifecycle))
            sock = socket.create_server(("127.0.0.1", 0))
            loop = asyncio.get_running_loop()
            found.append(Here(sock.getsockname()[1], steps, loop, lambda s: end(http, serving, lifecycle, s)))
            ready.set()
            await http.serve([sock])  # the event loop, for all clients
        service.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        if thread.is_alive():
            found[0].stop(0)
        thread.join()


running = contextlib.ExitStack()  # closed further down
here = running.enter_context(server())
print(httpx.get(f"{here.url}/health").json(), httpx.get(f"{here.url}/v1/models").json()["data"][0]["id"])

# %% [markdown]
# ## What lies on the wire
#
# HTTP is text. You write the request by hand, and look at what comes back, line by line.


# %%
def raw(body, path="/v1/completions"):
    """A request as it lies on the wire."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


STREAM = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 6, "stream": True}
print(raw(STREAM).decode().replace("\r\n", "\\r\\n\n"))

# %% tags=["measured"]
with socket.create_connection(("127.0.0.1", here.port)) as client:
    client.sendall(raw(STREAM))
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        received += client.recv(65536)
head, body = received.split(b"\r\n\r\n", 1)
print(head.decode(), "\n")
for line in body.splitlines(keepends=True)[:8]:
    print(repr(line.decode()))
print("...")
for line in body.splitlines(keepends=True)[-8:]:
    print(repr(line.decode()))

# %% [markdown]
# Two envelopes, one in the other. The outer one is HTTP's: `Transfer-Encoding: chunked`, where each piece is preceded
# by its length in hexadecimal, because nobody knows the length of the whole. The inner one are the events: a line that
# begins with `data:`, and an empty line. The last chunk is empty; the last event says `[DONE]`.
#
# Off with the outer envelope, and on with the inner one. A connection may cut the bytes anywhere, so the reader is
# tried with pieces of one byte, of seven, and with all at once.


# %%
def without_chunks(body):
    """The content of a chunked body."""
    content = b""
    while True:
        size, body = body.split(b"\r\n", 1)
        if int(size, 16) == 0:
            return content
        content, body = content + body[: int(size, 16)], body[int(size, 16) + 2 :]


def events_of(content, size):
    """The events in it, read in pieces of `size` bytes."""
    reader, found = EventReader(), []
    for start in range(0, len(content), size):
        found += reader.feed(content[start : start + size])
    return found


content = without_chunks(body)
events = events_of(content, len(content))
assert events == events_of(content, 1) == events_of(content, 7)
assert events[-1] == "[DONE]"
chunks = [json.loads(event) for event in events[:-1]]
texts = [chunk["choices"][0]["text"] for chunk in chunks]
print(texts, chunks[-1]["choices"][0]["finish_reason"])
assert "".join(texts) == llm.generate(STREAM["prompt"], SamplingParams(max_tokens=6)).text

# %% [markdown]
# What does a token weigh, on the wire and in memory?

# %%
per_event = median(len(event) + len("data: \n\n") for event in events[:-1])
work = decode_work(shape_of(llm.config), batch=1, context=1024, bytes_per_weight=4, bytes_per_kv=4)
kv = 1024 * llm.config.num_hidden_layers * 2 * llm.config.num_key_value_heads * llm.config.head_dim * 4
print(f"an event: {per_event:.0f} bytes, of which {mean(len(text) for text in texts):.0f} are text")
print(f"read from memory for one token behind 1,024 others: {work.bytes:,.0f} bytes, {kv:,} of them keys and values")
print(f"{kv / per_event:,.0f} bytes of keys and values for each byte sent")

# %% [markdown]
# ## OpenAI's client
#
# The client that half the world has installed needs to be told an address, and nothing else.

# %%
client = openai.OpenAI(base_url=f"{here.url}/v1", api_key="none is asked for", max_retries=0)
question = [{"role": "user", "content": "What is the capital of France?"}]
whole = client.chat.completions.create(model=MODEL, messages=question, temperature=0)
print(whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.completion_tokens)
pieces = []
for chunk in client.chat.completions.create(model=MODEL, messages=question, temperature=0, stream=True):
    pieces.append(chunk.choices[0].delta.content)
print(pieces)
assert "".join(piece or "" for piece in pieces) == whole.choices[0].message.content

# %% [markdown]
# A parameter that does not exist, one that exists and is not implemented, one with a wrong value: none is ignored.

# %%
for wrong in ({"temprature": 0.2}, {"suffix": "."}, {"max_tokens": 0}):
    try:
        client.completions.create(model=MODEL, prompt="The sky is", extra_body=wrong)
    except openai.BadRequestError as error:
        print(error.status_code, error.body["param"], "-", error.body["message"])

# %% [markdown]
# ## Several at once
#
# Six clients, each with a stream of its own and a thread to read it. Chapter 12 promised that nobody's tokens depend on
# who else is there; it holds through HTTP as well.

# %% tags=["measured"]
PROMPTS = ("The sun is", "Water boils at", "One, two, three,", "My favourite colour", "A horse is", "In winter,")


def streamed(where, prompt, max_tokens, **fields):
    """Stream a completion: its text, and the moment of each piece. Raises what went wrong with it."""
    asked = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "stream": True}
    pieces, times = [], [time.perf_counter()]
    for chunk in client_of(where).completions.create(**asked, extra_body=fields):
        pieces.append(chunk.choices[0].text)
        times.append(time.perf_counter())
    return "".join(pieces), times


def client_of(where):
    """OpenAI's client for a server."""
    return openai.OpenAI(base_url=f"{where.url}/v1", api_key="none", max_retries=0)


with ThreadPoolExecutor(len(PROMPTS)) as pool:
    started = time.perf_counter()
    together = list(pool.map(lambda prompt: streamed(here, prompt, 16), PROMPTS))
    seconds = time.perf_counter() - started
for prompt, (text, times) in zip(PROMPTS, together, strict=True):
    assert text == llm.generate(prompt, SamplingParams(max_tokens=16)).text, "another text than alone"
    print(f"first piece after {times[1] - times[0]:5.2f} s   {prompt}{text[:40]!r}")
print(f"{len(PROMPTS)} answers in {seconds:.1f} s; each text is the one that its prompt gets alone")

# %% [markdown]
# ## Somebody hangs up
#
# Now somebody asks for a long text, reads the first piece, and closes the connection. What becomes of the request? Ask
# the server's own metrics.


# %%
def metrics(where):
    """The samples of /metrics by name; of a counter by reason, `name{reason}`."""
    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{where.url}/metrics").text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason")
            name = sample.name.removeprefix("vllm:") + (f"{{{reason}}}" if reason else "")
            if "le" not in sample.labels:
                found[name] = sample.value
    return found


def wait_until(holds):
    """Look again and again until it is so."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)


def state(where):
    """What runs, what waits, and whether any block is in use."""
    now = metrics(where)
    blocks = "some" if now["kv_cache_usage_perc"] else "none"
    counts = f"{now['num_requests_running']:.0f} running, {now['num_requests_waiting']:.0f} waiting"
    return f"{counts}, blocks in use: {blocks}, aborted so far: {now['request_success_total{abort}']:.0f}"


LONG = {**STREAM, "max_tokens": 1000, "ignore_eos": True}
print("before       ", state(here))
caller = socket.create_connection(("127.0.0.1", here.port))
caller.sendall(raw(LONG))
while b"data: " not in caller.recv(65536):
    pass
print("streaming    ", state(here))
caller.close()
wait_until(lambda: metrics(here)["request_success_total{abort}"] == 1)
print("hung up      ", state(here))
assert metrics(here)["kv_cache_usage_perc"] == 0

# %% [markdown]
# That was a stream, where the server notices when it writes. It must notice, too, when there is nothing to write: this
# one waits for its whole answer, and leaves in silence.

# %%
caller = socket.create_connection(("127.0.0.1", here.port))
caller.sendall(raw({**LONG, "stream": False}))
wait_until(lambda: metrics(here)["num_requests_running"] == 1)
print("not streaming", state(here))
caller.close()
wait_until(lambda: metrics(here)["request_success_total{abort}"] == 2)
print("hung up      ", state(here))
assert metrics(here)["kv_cache_usage_perc"] == 0
assert metrics(here)["generation_tokens_total"] < 1000, "of these two and of all before them"
running.close()

# %% [markdown]
# Two answers of 1,000 tokens were asked for, and of neither was more than the beginning computed.
#
# ## Too many
#
# A server with one place and a queue for two. One request runs, two wait, and a fourth comes.


# %%
def requests_in(where):
    """How many run or wait."""
    now = metrics(where)
    return now["num_requests_running"] + now["num_requests_waiting"]


with server(Settings(max_waiting=2), max_batch_size=1) as small, contextlib.ExitStack() as callers:
    for number in range(3):
        caller = callers.enter_context(socket.create_connection(("127.0.0.1", small.port)))
        caller.sendall(raw(LONG))
        wait_until(lambda wanted=number + 1: requests_in(small) == wanted)
    print(state(small))
    full = httpx.post(f"{small.url}/v1/completions", json={**LONG, "stream": False})
    print(full.status_code, "Retry-After:", full.headers["retry-after"], "-", full.json()["error"]["message"])
    never = httpx.post(f"{small.url}/v1/completions", json={**LONG, "n": 4})
    print(never.status_code, "-", never.json()["error"]["message"])
    assert (full.status_code, never.status_code) == (429, 400)
    caller.close()  # the last one, which waits, loses patience
    wait_until(lambda: metrics(small)["request_success_total{abort}"] == 1)
    print(state(small))

# %% [markdown]
# The fourth is told to come back, the one that could never fit is told so, and one that leaves the queue makes room in
# it, though it never ran.
#
# How long may a queue be? Predict it first: two places, answers of 20 tokens, and a promise to the last in the queue.
# One answer alone tells what an answer takes; the rest is a division.

# %% tags=["measured"]
TOKENS, PLACES, WAITING = 20, 2, 4


def answer_s(where, number):
    """Seconds of each of `number` answers at once, prompt and all, and seconds to each one's first piece."""
    with ThreadPoolExecutor(number) as pool:
        jobs = [pool.submit(streamed, where, PROMPTS[i % 6], TOKENS, ignore_eos=True) for i in range(number)]
        times = [job.result()[1] for job in jobs]
    return [one[-1] - one[0] for one in times], [one[1] - one[0] for one in times]


with server(max_batch_size=PLACES) as small:
    answer_s(small, PLACES)  # the first passes of a process are slower
    whole_s, first_s = answer_s(small, PLACES)
    took, prefill = mean(whole_s), mean(first_s)
    promised = WAITING * took / PLACES + prefill
    _, waited = answer_s(small, PLACES + WAITING)
print(f"an answer takes {took:.2f} s, its first piece comes after {prefill:.2f} s when there is a place")
print(f"of {WAITING} in the queue, the last one: predicted {promised:.2f} s, measured {max(waited):.2f} s")
for ttft_s in (1.0, 2.0, 5.0, 10.0):
    print(f"for a first token within {ttft_s:4.1f} s: {longest_queue(ttft_s, prefill, took, PLACES)} may wait")
assert max(waited) > took, "whoever waits, waits for an answer at least"

# %% [markdown]
# ## What you can see from outside
#
# Twelve requests, four at a time. `/metrics` is read before and after; what lies between is the run's. A histogram's
# buckets only count, so quantiles come out of them by a straight line within a bucket. Beside them: the same from the
# clients' own clocks.


# %% tags=["measured"]
def histogram(where, name):
    """The bounds and counts of a histogram's buckets."""
    for family in text_string_to_metric_families(httpx.get(f"{where.url}/metrics").text):
        if family.name == f"vllm:{name}":
            buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
            return [float(one.labels["le"]) for one in buckets], [one.value for one in buckets]
    raise KeyError(name)


BEGINNING = "You answer in one short sentence. You are polite, and you do not guess. You write plain English. "
NAMES = ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_queue_time_seconds")
with server(max_batch_size=4) as busy:
    streamed(busy, "warm", 2)
    before = {name: histogram(busy, name)[1] for name in NAMES}
    sums = metrics(busy)
    with ThreadPoolExecutor(12) as pool:
        runs = list(pool.map(lambda i: streamed(busy, BEGINNING + PROMPTS[i % 6], 16, ignore_eos=True)[1], range(12)))
    after = {name: histogram(busy, name) for name in NAMES}
    sums = {name: value - sums.get(name, 0) for name, value in metrics(busy).items()}
clients = {
    NAMES[0]: sorted(one[1] - one[0] for one in runs),
    NAMES[1]: sorted(b - a for one in runs for a, b in pairwise(one[1:])),
}
for name, (bounds, counts) in after.items():
    within = [now - then for now, then in zip(counts, before[name], strict=True)]
    print(f"{name}: {within[-1]:.0f} observations, mean {1e3 * sums[name + '_sum'] / within[-1]:.0f} ms")
    for q in (0.5, 0.9, 0.99):
        own = clients.get(name)
        seen = f"   the clients saw {1e3 * own[min(len(own) - 1, int(q * len(own)))]:6.0f} ms" if own else ""
        print(f"    {q:4.0%} below {1e3 * quantile(q, bounds, within):6.0f} ms{seen}")
assert sums["time_to_first_token_seconds_count"] == 12
assert mean(clients[NAMES[0]]) > sums["time_to_first_token_seconds_sum"] / 12, "what the network adds is not in it"
hits, asked = (sums[f"prefix_cache_{what}_total"] for what in ("hits", "queries"))
print(f"prefix cache: {hits:.0f} of {asked:.0f} prompt tokens were known")

# %% [markdown]
# Where they differ most, it is the buckets: from 0.1 to 0.2 s there is one, from 1 to 2 s there is one, and a straight
# line goes through each. A quantile from buckets is as good as their bounds were chosen.
#
# ## What the server costs
#
# A request alone. For each token there are three moments: when the engine's step began, when it was over, and when the
# client had the event in its hands. (The client is a thread of the same process, and takes turns with the others:
# on a machine of its own it would disturb less.) The limit is the memory's: what a step has to read, at the speed that
# this machine reads with.

# %% tags=["measured"]
limits = measure_limits(device)
with server() as quiet:
    streamed(quiet, "warm", 4)
    quiet.steps.clear()
    loop_s = quiet.loop_s()
    text, times = streamed(quiet, "Once upon a time", 64, ignore_eos=True)
    loop_s = (quiet.loop_s() - loop_s) / (len(times) - 1)
    done = [(at, record) for at, record in quiet.steps if any(part.samples for part in record.parts)]
steps = [record.ended_s - record.started_s for _, record in done[1:]]  # without the prompt's
between = [b - a for (a, _), (b, _) in pairwise(done)]
client_s = (times[-1] - times[1]) / len(between)
limit = decode_work(shape_of(llm.config), 1, 36, 4, 4).bytes / limits.bandwidth_bytes_per_s
print(f"memory allows a token every      {1e3 * limit:6.2f} ms")
print(f"a step of the engine takes       {1e3 * mean(steps):6.2f} ms")
print(f"from one step's end to the next  {1e3 * mean(between):6.2f} ms")
print(f"the client has a token every     {1e3 * client_s:6.2f} ms")
print(f"and the last event {1e3 * (times[-1] - done[-1][0]):.2f} ms after its step was over")
share = 1 - sum(steps) / sum(between)
print(f"not the engine's step: {share:.1%} of the time of a token; what memory needs: {limit / client_s:.0%}")
print(f"the event loop worked {1e6 * loop_s:.0f} us for each event: {1 / loop_s:,.0f} events a second would fill it")
assert client_s > limit, "nobody reads faster than memory"

# %% tags=["measured"]
figure, axes = plt.subplots()
places = range(1, len(steps) + 1)
axes.step(places, [1e3 * s for s in between], where="mid", color="C0", label="from token to token")
axes.step(places, [1e3 * s for s in steps], where="mid", color="C1", label="the engine's step")
axes.axhline(1e3 * limit, linestyle="--", color="C2", label="memory's limit")
axes.set(xlabel="token", ylabel="ms", ylim=(0, None), title="What a token costs, and whom")
axes.legend()
plt.show()

# %% [markdown]
# ## The end
#
# A server is told to end, many times in its life. Somebody is reading; the grace is short. New ones are refused, who
# reads gets an error as the last event, and no `[DONE]`: a text that breaks off must not look like one that is whole.

# %%
with server() as ending:
    caller = socket.create_connection(("127.0.0.1", ending.port))
    caller.sendall(raw(LONG))
    received = caller.recv(65536)
    while b"data: " not in received:
        received += caller.recv(65536)
    ending.stop(grace_s=0.2)
    while data := caller.recv(65536):
        received += data
    last = events_of(without_chunks(received.split(b"\r\n\r\n", 1)[1]), 1000)[-1]
    print(received.splitlines()[0].decode())
    print(last)
    assert "error" in json.loads(last)
    assert b"[DONE]" not in received
    caller.close()

# %% [markdown]
# The status was sent long ago, and it was 200. That is why a client has to look for the end of a stream, and not only
# at its beginning.
#
# ## Exercises
#
# One cell for each exercise of chapter 17: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("17.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch17.py`: from there
# the last cell runs a server on it, and `!minillm grade 17` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
import hmac
import math
import re
from collections.abc import Sequence

from minillm.engine.async_engine import Reading
from minillm.errors import InputError
from minillm.exercises import check, hint, todo
from minillm.server.errors import RequestError


# %%
def feed(self, received: bytes) -> list[str]:
    """`EventReader.feed`: bytes of a stream of server-sent events have come. Return the events that are complete now.

    self is the reader of one stream, and this function its method. Two fields are yours, and keep what has come and
    has no end yet:

        self.rest       bytes, b"" at first: the beginning of a line
        self.data       a list of str, [] at first: the data lines of an event

    A connection delivers bytes in pieces of any size: one may end inside a line, between the two bytes of a line end,
    or inside a character of several bytes.

    - Lines end with LF, with CR LF, or with CR alone.
    - A line `data: TEXT` is a line of the event's data. One space behind the colon belongs to the form, more do not.
      The text is UTF-8. (`data` without a colon is an empty line of data.)
    - An empty line ends the event. Its data are its lines of data, joined by line feeds. Without any such line there
      is no event.
    - Other lines mean nothing here: `event: ...`, `id: ...`, `retry: ...`, and comments, which begin with a colon.

    Return the data of the events as a list of str, [] if none is complete. `[DONE]` is an event like any other. An
    event that has no empty line behind it has not ended.

    About 12 lines.
    """
    todo("17.1")


check("17.1", feed)  # and hint("17.1"), when you are stuck


# %%
def leave(self, reading: Reading, reason: str = "abort") -> None:
    """`AsyncEngine._leave`: a reader has had its last piece, or has gone away before it. End what it still has.

    self is the AsyncEngine, and this function its method, called in the engine's own thread:

        self._readers                           a dict: request id -> (who reads it, its place among theirs)
        self.engine.abort(request_id, reason)   ends a request, wherever it is, and gives its blocks back; of one that
                                                has ended already it does nothing

    What the reader has read, or wanted to read, is `reading.answers`, a list with an answer for each of its requests;
    `answer.request.request_id` is the request's id. The list may be empty.

    Each request that this reader still has in self._readers is taken out of it and aborted, for the given reason. What
    is not there, or belongs to somebody else by now (ids may come again), is none of its business: this may be called
    a second time for the same reader.

    About 5 lines.
    """
    todo("17.2")


check("17.2", leave)  # and hint("17.2"), when you are stuck


# %%
def check_room(choices: int, in_engine: int, coming: int, most: int) -> None:
    """Is there room for a request that asks for `choices` texts? Raise RequestError if there is not.

    choices: the texts that it asks for, at least 1: each becomes a request of the engine.
    in_engine: texts that run or wait in the engine.
    coming: texts of requests that have been let in and are not in the engine yet (their prompts become tokens).
    most: how many there may be in all.

    Two answers, and which one it is decides what a client does next:

    - more than there could ever be room for: the request is wrong. RequestError("a sentence", param="n",
      code="invalid_value"), whose status is 400 by itself.
    - more than there is room for at the moment: RequestError("a sentence", code="queue_full", status=429,
      type="rate_limit_error", headers={"retry-after": "1"}). The header says after how many seconds to try again, as a
      str.

    Return nothing if there is room.

    About 8 lines.
    """
    todo("17.3")


check("17.3", check_room)  # and hint("17.3"), when you are stuck


# %%
def longest_queue(ttft_s: float, prefill_s: float, answer_s: float, places: int) -> int:
    """How many requests may wait, if the last of them is to have its first token after `ttft_s` seconds at most?

    places: requests that run at a time. All places are taken, and whoever has got one keeps it for `answer_s` seconds,
    prompt and answer together. They began one after the other, evenly: one ends every `answer_s / places` seconds, and
    the first that waits has to wait that long, the second twice as long.
    prefill_s: a request that has got a place has its first token this much later.

    Return an int, 0 where not even the first one that waits would be in time.

    About 2 lines.
    """
    todo("17.4")


check("17.4", longest_queue)  # and hint("17.4"), when you are stuck


# %%
def quantile(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float:
    """A quantile out of a histogram's buckets, as Prometheus' `histogram_quantile` computes it.

    q: which one, 0.5 for the median. Raise InputError, with a sentence, unless it is above 0 and at most 1.
    bounds: the upper bounds of the buckets, increasing and above 0; the last one is `math.inf`.
    counts: for each bucket, how many observations are at most as large as its bound. They include those of the
    buckets before it, so the last count is the number of all.

    - The rank is q times the number of all. The bucket is the first one whose count reaches it.
    - Within a bucket, observations are taken to lie evenly, from the bound before it (0 for the first bucket) to its
      own. Take the value at the rank's place among those of this very bucket.
    - Of the last bucket nobody knows how far it reaches: return the largest bound that is a number.
    - Without any observations, return `math.nan`.

    About 8 lines.
    """
    todo("17.5")


check("17.5", quantile)  # and hint("17.5"), when you are stuck


# %%
def is_authorized(header: bytes, key: str) -> bool:
    """May this request come in?

    header: the value of its Authorization header, as it was sent: any bytes; b"" if there was none.
    key: the server's key, printable ASCII, not empty. It may have spaces inside.

    The right header is `Bearer KEY`. The word may be in capitals or not, as HTTP has it, and there may be spaces around
    the key. The key itself must be the same, letter by letter.

    Compare by `hmac.compare_digest(one, other)`, which takes as long whether the first letter is wrong or the last:
    from a comparison that ends at the first difference, one can learn a key letter by letter. It takes two bytes
    objects, or two str that are ASCII.

    About 2 lines.
    """
    todo("17.6")


check("17.6", is_authorized)  # and hint("17.6"), when you are stuck

# %% [markdown]
# A server on your own code: whatever of yours is finished in `minillm/exercises/` takes the place of the engine's, for
# clients of all kinds. What is listed is how often each of your functions was called. (This cell needs those above.)

# %%
from minillm.exercises.mine import running_on_mine

with running_on_mine("finished", print), server(Settings(api_key="s3cret")) as mine:
    headers = {"authorization": "Bearer s3cret"}
    asked = {"model": MODEL, "prompt": "The sky is", "temperature": 0, "max_tokens": 4}
    for key in (headers, {}):
        response = httpx.post(f"{mine.url}/v1/completions", json=asked, headers=key)
        print(response.status_code, response.json().get("choices", [response.json()])[0])
