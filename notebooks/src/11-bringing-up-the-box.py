# %% [markdown]
# # Notebook 11: Bringing up the box
#
# Beside [chapter 11](../chapters/11-bringing-up-the-box.md). You ask your own machine what it has, take a recorded H100
# and break it in a dozen ways, see why the lowest failure is the one to mend, and then do with a model what you would
# do on any new box: predict, and only then look.
#
# The notebook runs from top to bottom on a CPU in about a minute, and on a CUDA GPU as it stands. The recorded boxes
# need no GPU at all.

# %%
import os
import sys
import time
from collections import Counter
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from minillm.device import clock, pick_device
from minillm.exercises.checkout import checkout
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.loading.checkpoint import open_checkpoint
from minillm.loading.loader import load_tokenizer
from minillm.loading.registry import resolve
from minillm.machine.doctor.diagnosis import CHECKS, findings
from minillm.machine.doctor.finding import first_failure
from minillm.machine.doctor.host import usable_cpus
from minillm.machine.doctor.parse_gpu import smi_report
from minillm.machine.doctor.probe import examine
from minillm.machine.doctor.report import print_report
from minillm.machine.doctor.system import Output, System
from minillm.machine.doctor.torch_build import has_code_for, runs
from minillm.machine.measure import read_bandwidth
from minillm.metrics import decode_ceiling
from minillm.prefill import prefill

sys.path.append(str(checkout() / "tests"))  # the recorded boxes: tests/boxes.py, tests/recorded/
from boxes import BROKEN, CU128, HEALTHY, WARNED, torch_says

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()

# %% [markdown]
# ## Your own machine
#
# First gather what is known, in one pass over commands and files; then put the questions to it. `System` is the real
# machine. (`python -m minillm.doctor` is these three calls.)

# %% tags=["measured"]
mine = examine(System())
mine = replace(mine, weights_path="weights")  # where exactly yours are need not be in a notebook
print_report(findings(mine), Console(file=sys.stdout, width=100, color_system=None, force_jupyter=False))

# %% [markdown]
# ## A recorded box
#
# The doctor reaches the machine through one class, and a recording can take its place. This one answers as an H100
# does. Here is the head of what it says to `nvidia-smi -q`, and what the parser makes of all of it.

# %%
h100 = HEALTHY["h100"]
text = h100.run("nvidia-smi", "-q").text
print(*text.splitlines()[1:9], "...", sep="\n")
report = smi_report(text)
gpu = report.gpus[0]
print(f"\ndriver {report.driver}, speaks CUDA up to {report.cuda}")
print(
    f"{gpu.name}: {gpu.memory_total_mib:,.0f} MiB, power limit {gpu.power_limit_w:.0f} of {gpu.power_default_w:.0f} W"
)

# %%
healthy = findings(examine(h100))
assert first_failure(healthy) is None
print(Counter(finding.status for finding in healthy))

# %% [markdown]
# "80 GB" is 81,559 MiB: 85.5 GB, or 79.6 GiB. Always say which.
#
# ## The morning after an update
#
# The operating system has replaced the driver's libraries, and the old module is still in the kernel. Two answers of
# the box are now others: those of `nvidia-smi` and of PyTorch.

# %%
mismatch = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.133\n"
no_cuda = torch_says(arch=CU128, error="Error 803: system has unsupported display driver / cuda driver combination")
updated = h100.but(commands={"nvidia-smi -q": Output(mismatch, 18), "torch": no_cuda})
found = findings(examine(updated))
first = first_failure(found)
print("mend first:", first.name)
print("          ", first.what)
print("         $", first.mend)
waiting = [finding.name for finding in found if finding.status == "not checked"]
assert all(finding.what == f"depends on: {first.name}" for finding in found if finding.name in waiting)
assert [finding.name for finding in found if finding.status == "fail"] == [first.name]
print(f"\n{len(waiting)} checks wait for it: {', '.join(waiting)}")

# %% [markdown]
# What if nobody waited? Put every check to the same facts, whatever it stands on.

# %%
facts = examine(updated)
for check in CHECKS:
    answer = check.ask(facts)
    if check.name in waiting:
        print(f"{check.name:<18}{answer.status:<12}  {answer.what}")

# %% [markdown]
# One of twelve fails, the one at the top, and that is the message that you would have met first; its remedy has nothing
# to do with a reboot. The others have nothing to go on, and say "ok", or that a part is not there: an H100 without
# ECC, in a slot of unknown width. A check is only as good as the ground that it stands on, so a check whose ground has
# failed is not asked.
#
# ## A dozen boxes
#
# Each of these is the same kind of recording, with something broken. What would you do first?

# %%
names = [
    "fallen off the bus, as lspci sees it",
    "nouveau in the way",
    "container without GPU",
    "driver and library differ",
    "nvidia-smi hangs",
    "MIG without instances",
    "fabric manager not running",
    "driver too old for PyTorch's CUDA",
    "CPU build on a GPU box",
    "a GPU newer than PyTorch",
    "hidden by CUDA_VISIBLE_DEVICES",
    "GPU memory full",
]
boxes = {name: BROKEN[name][0] for name in names}
diagnoses = {name: findings(examine(box)) for name, box in boxes.items()}
for name, found in diagnoses.items():
    first = first_failure(found)
    assert first is not None
    print(f"{name}\n    {first.name}: {first.what}\n    $ {first.mend}")

# %% [markdown]
# And some that do not fail. They work, less well than they could, and no program ever says so.

# %%
for name in ("power cap lowered", "narrow slot", "persistence mode off", "64 MiB of /dev/shm in a container"):
    found = findings(examine(WARNED[name][0]))
    assert first_failure(found) is None
    for finding in found:
        if finding.status == "warn":
            print(f"{name}\n    {finding.name}: {finding.what}\n    $ {finding.mend}")

# %% [markdown]
# All of it in one picture: a column per box, a row per check, the stack's bottom at the bottom. In each column there
# is one red field, and above it the grey of what waits for it. What does not stand on it (the disk, the processor)
# stays green.

# %%
rows = [check.name for check in CHECKS if check.name != "Apple GPU"]
colours = {"ok": "#bfe3cb", "warn": "#f6cf83", "fail": "#c8372d", "not checked": "#b9bec6", "not here": "#f1f2f4"}
order = list(colours)
grid = []  # [check, box]
for row in rows:
    said = [next(finding.status for finding in found if finding.name == row) for found in diagnoses.values()]
    grid.append([order.index(status) for status in said])
for column in zip(*grid, strict=True):
    assert column.count(order.index("fail")) == 1, "one failure, one thing to mend"

figure, axes = plt.subplots(figsize=(9, 7.5))
axes.imshow(
    grid, cmap=ListedColormap(list(colours.values())), vmin=0, vmax=len(order) - 1, aspect="auto", origin="lower"
)
axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
axes.set_yticks(range(len(rows)), rows)
axes.set_xticks([x - 0.5 for x in range(1, len(names))], minor=True)
axes.set_yticks([y - 0.5 for y in range(1, len(rows))], minor=True)
axes.grid(which="major", visible=False)
axes.grid(which="minor", color="white", linewidth=1.5)
axes.tick_params(which="both", length=0)
axes.legend(
    handles=[plt.Rectangle((0, 0), 1, 1, color=colour, label=status) for status, colour in colours.items()],
    loc="upper center",
    bbox_to_anchor=(0.5, 1.08),
    ncols=len(colours),
    frameon=False,
)
plt.show()

# %% [markdown]
# ## Four numbers called CUDA
#
# What the driver can speak, what PyTorch was built with, which hardware it has code for, which hardware is there:

# %%
for name in ("h100", "8x-a100", "t4", "4090"):
    facts = examine(HEALTHY[name])
    built, states, driver = facts.torch.cuda, facts.smi.cuda, facts.smi.driver
    capability = facts.capabilities[0]
    assert runs(built, states, driver)
    assert has_code_for(capability, facts.torch.arch_list)
    higher = "higher, and yet it runs" if float(built) > float(states) else ""
    print(f"{name:<8} driver {driver:<11} speaks {states:<5} PyTorch built with {built:<5} GPU {capability}   {higher}")

# %% [markdown]
# The rule for the first two, tried on every pair of some drivers and some builds:

# %%
drivers = {"450.51.06": "11.0", "470.256.02": "11.4", "525.60.13": "12.0", "535.183.01": "12.2", "580.65.06": "13.0"}
builds = ("11.8", "12.1", "12.6", "12.8", "13.0")
print("driver       speaks   " + "".join(f"{'cu' + build.replace('.', ''):>7}" for build in builds))
for driver, states in drivers.items():
    verdicts = [runs(build, states, driver) for build in builds]
    print(f"{driver:<13}{states:<9}" + "".join(f"{'runs' if verdict else '-':>7}" for verdict in verdicts))

# %% [markdown]
# Each driver runs everything older, and everything of its own major: 535 states 12.2 and runs 12.8. The exception is
# in the first line: 450.51 came with CUDA 11.0 and is older than 450.80.02, from which on minor versions count no more.
#
# ## And without a GPU: whose processors?

# %% tags=["measured"]
usable = usable_cpus(mine) or 1
print(f"the machine has                {mine.cpus}")
print(f"this process may run on        {mine.cpus_allowed}")
print(f"its time is limited to         {mine.cpu_quota or 'no limit'}")
print(f"so it really gets              {usable}")
print(f"PyTorch starts                 {torch.get_num_threads()} threads")
vectors = next(finding.what for finding in findings(mine) if finding.name == "vectors")
print(f"and can multiply               {vectors}")

# %% [markdown]
# ## The first model: predict
#
# Now the top layer. Load time is bytes over the rate at which they come. There are two such rates: that of the disk,
# and that of the page cache, where a file stays after it was read once. (Only Linux lets us ask the system to forget
# one file; elsewhere both are the second.)


# %%
def read_seconds(path, *, forget):
    """Seconds to read a file from its beginning to its end, and do nothing with it."""
    buffer = bytearray(16 * 2**20)
    with open(path, "rb", buffering=0) as file:
        if forget and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while file.readinto(buffer):
            pass
        return time.perf_counter() - started


path = resolve(MODEL)
files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
file_bytes = sum(file.stat().st_size for file in files)
print(f"{file_bytes:,} bytes of weights in {len(files)} file" + ("s" if len(files) > 1 else ""))

# %% tags=["measured"]
disk_s = sum(read_seconds(file, forget=True) for file in files)
cache_s = min(sum(read_seconds(file, forget=False) for file in files) for _ in range(3))
print(f"from disk         {disk_s:6.2f} s   {file_bytes / disk_s / 1e9:6.2f} GB/s")
print(f"from page cache   {cache_s:6.2f} s   {file_bytes / cache_s / 1e9:6.2f} GB/s")
for gigabytes, name in ((16.06, "Llama-3-8B"), (141.1, "Llama-3-70B")):
    print(f"{name} in 16 bit, {gigabytes:6.2f} GB, from this disk: {gigabytes * 1e9 / file_bytes * disk_s:6.1f} s")

# %% [markdown]
# The file is in the page cache now, so the second rate is the prediction. Then look.

# %% tags=["measured"]
started = clock(device)
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
load_s = clock(device) - started

started = time.perf_counter()
load_tokenizer(open_checkpoint(path))
tokenizer_s = time.perf_counter() - started
print(f"predicted                     {cache_s:5.2f} s, at least")
print(f"measured                      {load_s:5.2f} s")
print(f"of that, the tokenizer alone  {tokenizer_s:5.2f} s")

# %% [markdown]
# More than predicted. The bytes are not only read: room is made for the model and each tensor copied to its place, and
# the tokenizer's 49,152 tokens are read as text. That part is the same for a model of any size. For one of 135M it is
# most of the time; for one of 8B it is noise beside the first column of the cell before, and the disk is all that
# counts. If such a load takes far longer than predicted, the rate was not what you thought: a network disk, a
# throttled volume, a cold cache.
#
# ## Then measure: a share of the ceiling
#
# The ceiling is bandwidth over bytes. Time some decode passes, and set them against it.


# %%
def pass_seconds(repeats=12):
    """The shortest of some decode passes behind a few tokens."""
    cache = KVCache(model.config, 64, device=device)
    prefill(model, tokenizer.encode("The capital of France is"), cache)
    held, seconds = cache.length, []
    for _ in range(repeats):
        started = clock(device)
        prefill(model, [7042], cache)
        seconds.append(clock(device) - started)
        cache.truncate(held)
    return min(seconds)


# %% tags=["measured"]
before = read_bandwidth(device)
pass_s = pass_seconds()
bandwidth = max(before, read_bandwidth(device))
ceiling = decode_ceiling(bandwidth, model.nbytes)
print(f"memory reads   {bandwidth / 1e9:8.1f} GB/s")
print(f"so at most     {ceiling:8.1f} tokens/s, {1e3 / ceiling:6.2f} ms for each")
print(f"a pass takes   {1e3 * pass_s:8.2f} ms: {1 / pass_s:.1f} tokens/s")
print(f"               {1 / pass_s / ceiling:8.0%} of the ceiling")

# %% [markdown]
# Where does the rest go? Part of it is the price of handing over work: PyTorch spends some time on every operation,
# however small. Count the operations of one pass, and measure what one costs that does next to nothing.


# %%
class Operations(TorchDispatchMode):
    """Counts what PyTorch is asked to do, without operations that only look at a tensor in another way."""

    VIEWS = (
        *("view", "reshape", "slice", "unsqueeze", "squeeze", "expand", "select", "transpose", "mT", "t"),
        *("chunk", "split", "detach", "alias", "to", "item"),
    )

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in self.VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


cache = KVCache(model.config, 64, device=device)
logits = prefill(model, tokenizer.encode("The capital of France is"), cache)
with Operations() as operations:
    prefill(model, [7042], cache)
num_operations = operations.counts.total()
assert num_operations > 10 * model.config.num_hidden_layers, "a layer is many operations"

# %% tags=["measured"]
one = torch.ones(1, device=device)
started = clock(device)
for _ in range(20_000):
    one.add_(1)
operation_s = (clock(device) - started) / 20_000
floor_s = num_operations * operation_s
print(f"{num_operations:,} operations, {operation_s * 1e6:.1f} microseconds for the handing over of each:")
print(f"{1e3 * floor_s:.1f} ms of the {1e3 * pass_s:.1f} ms, whatever the memory's speed")

# %% [markdown]
# On a CPU this is a small part of the pass. On a large GPU, for so small a model, it is nearly all of it: the reading
# takes a tenth of a millisecond, and the handing over some milliseconds. A share of 2 % is then no fault of the box.
#
# ## It answers. Is it right?
#
# Speed is one half. For the other, compare a number, not a word: a model that is slightly wrong still says " Paris".

# %%
probability = float(logits.softmax(-1)[0, 7042])
assert tokenizer.decode([7042]) == " Paris"
assert abs(probability - 0.773) < 0.002, "the probability that chapter 1 shows"
print(f"{probability:.3f} for {tokenizer.decode([int(logits.argmax())])!r}")

# %% [markdown]
# ## How many threads?
#
# On a CPU, one per processor that is really yours. Fewer leave some of the memory's speed unused; more wait for each
# other, and so do threads on a processor that another program holds (on a busy machine, a single thread can be as fast
# as two). Under a CPU quota more is a disaster (the chapter has figures). With a GPU the model is not on the processor,
# and this shows nothing.

# %% tags=["measured"]
threads = torch.get_num_threads()
for count in dict.fromkeys((1, usable, 4 * usable)):
    torch.set_num_threads(count)
    print(f"{count:3} threads on {usable} processors: {1e3 * pass_seconds(6):8.1f} ms per token")
torch.set_num_threads(threads)

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 11: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("11.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch11.py`: from there
# `!minillm grade 11` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
import math
import re
from collections.abc import Iterable
from dataclasses import replace

from minillm.exercises import check, hint, todo
from minillm.machine.doctor.facts import Facts
from minillm.machine.doctor.finding import Check, Finding, not_checked, not_here
from minillm.machine.doctor.parse_gpu import version_tuple
from minillm.machine.doctor.torch_build import FIRST_DRIVER


# %%
def runs(built: str, highest: str | None, driver: str | None, *, wsl: bool = False) -> bool | None:
    """Whether a driver runs a program that was built with CUDA `built`.

    built: the program's CUDA version, "12.8", as `torch.version.cuda` gives it. highest: the CUDA version that the
    driver states, as in the head of `nvidia-smi`. driver: the driver's own version, "535.183.01". Of CUDA versions
    only the first two numbers count.

    - A driver runs every program whose CUDA version is not higher than the one it states.
    - It runs a higher one too if the major number is the same, and the driver itself is at least the first of that
      major: `FIRST_DRIVER` maps 12 to "525.60.13", and so on.
    - Under WSL2 (`wsl`) the driver is that of Windows, which is numbered otherwise: with the same major number, take
      it as new enough.
    - Where `built` or `highest` cannot be read, nobody can say: return None.

    `version_tuple("535.183.01")` is (535, 183, 1), and None for what is no version; tuples compare number by number.

    About 8 lines.
    """
    todo("11.1")


check("11.1", runs)  # and hint("11.1"), when you are stuck


# %%
def has_code_for(capability: str, arch_list: tuple[str, ...]) -> bool:
    """Whether a build of PyTorch has code that a GPU of this compute capability runs.

    capability: the GPU's, "8.9". arch_list: what `torch.cuda.get_arch_list()` says, such as ("sm_86", "sm_90a",
    "compute_90"): the last digit is the minor number, what stands before it the major one.

    - `sm_86` is machine code. It runs on GPUs of its own major number, at the same minor number or a later one.
    - `sm_90a` is machine code for exactly that capability, and for no other.
    - `compute_90` is PTX, which the driver compiles when it is loaded: for that capability and any later one, of any
      major number. With an `a` at its end: for exactly that one.

    Return False if nothing in the list fits.

    About 12 lines.
    """
    todo("11.2")


check("11.2", has_code_for)  # and hint("11.2"), when you are stuck


# %%
def usable_cpus(facts: Facts) -> int | None:
    """The processors that this process really gets, and so the threads that it should start.

    facts.cpus_allowed: how many it may run on (its affinity; None where the system has no such thing). Failing that,
    facts.cpus: how many the machine has. Failing that, facts.cpu.logical: how many /proc/cpuinfo lists. Each may be
    None; if all are, return None.

    facts.cpu_quota: how many processors' worth of time its control group is allotted (2.5 for `cpu.max` "250000
    100000"), or None: no limit. A thread is a whole one: round down, but not below 1.

    Both limits hold.

    About 5 lines.
    """
    todo("11.3")


check("11.3", usable_cpus)  # and hint("11.3"), when you are stuck


# %%
def diagnose(facts: Facts, checks: Iterable[Check]) -> list[Finding]:
    """Put all checks to the facts, in the given order: one finding per check, none of them a consequence of another.

    `check.ask(facts)` gives a finding, whose status is "ok", "warn", "fail", "not here" or "not checked". But before
    a check is asked, look at what became of the checks that it names (they come before it):

    - If one in `check.needs` or `check.after` failed, do not ask. The finding is `not_checked("depends on: NAME")`.
    - Else, if one in `check.needs` is not here, do not ask. The finding is `not_here("depends on: NAME")`.
      (`after` means: must not have failed, but may be absent.)
    - Else ask it.

    Both spread: whatever stands on a check that was not asked is not asked either, and NAME is always the check at the
    bottom, the one that failed (or is absent) itself. If there are several, take that of the first name in `needs`,
    then `after`. "warn", and a check that answers "not checked" itself, stop nothing.

    Each finding carries its check's name and group: `replace(finding, name=check.name, group=check.group)`.

    About 18 lines.
    """
    todo("11.4")


check("11.4", diagnose)  # and hint("11.4"), when you are stuck
