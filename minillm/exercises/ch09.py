"""Exercises of chapter 9, *Two resources*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 9           grades this file and shows where you are
    pytest --ch 9.2         grades one exercise
    pytest --hint 9.2       the next hint; each call gives away a little more

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

All arithmetic: no tensors here. A `Machine` has two speeds, `bandwidth_bytes_per_s` and `flops_per_s`: Machine(30e9,
150e9) reads 30 GB/s and does 150 GFLOP/s. A `ModelShape` has the sizes of a model, under the names of config.json (see
minillm/machine/shape.py); those of well-known models are in `minillm.machine.well_known`: BY_NAME["llama-3-8b"].shape.
"""

from minillm.exercises import todo
from minillm.machine.roofline import Machine
from minillm.machine.shape import ModelShape, num_active_params  # noqa: F401 - here for you


# --- 9.1 -------------------------------------------------------------------------------------------------------------
def attainable_flops(intensity: float, machine: Machine) -> float:
    """The roofline: FLOP per second that work of this arithmetic intensity can reach on this machine.

    intensity: operations per byte read. machine: its two speeds, see above.

    A machine of 100 bytes/s and 1,000 FLOP/s can do 500 FLOP/s of work with 5 FLOP per byte, and 1,000 of work with 50.

    About 1 line.
    """
    todo("9.1")


# --- 9.2 -------------------------------------------------------------------------------------------------------------
def forward_flops(shape: ModelShape, batch: int, new_tokens: int, context: int = 0) -> int:
    """Floating-point operations of one forward pass, for a dense model without a sliding window.

    batch: sequences. new_tokens: tokens that each of them adds in this pass. context: tokens that each of them has in
    its cache already.

    Count two operations, a multiplication and an addition, for each product:

    - every new token is multiplied by every weight of the layers. `num_active_params(shape)` counts these weights and
      those of the head (vocab_size x hidden_size) together;
    - the head is applied to the last new token of each sequence only, for nobody asks what follows the others;
    - in attention, each query head of each layer compares each new token with itself and all tokens before it, and
      takes a share of the value of each: two times `head_dim` products per pair. Pairs that the causal mask hides do
      not count.

    Softmax, rotation and the like are left out: they are far below a hundredth. Return a whole number (int).

    About 6 lines.
    """
    todo("9.2")


# --- 9.3 -------------------------------------------------------------------------------------------------------------
def forward_bytes(
    shape: ModelShape,
    batch: int,
    new_tokens: int,
    context: int = 0,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> float:
    """Bytes that one forward pass reads from memory at the least, for a dense model without a sliding window.

    The first four are those of 9.2. bytes_per_weight, bytes_per_kv: bytes of one number of the weights, and of one
    number of the cache.

    Two things are read: the weights that the pass multiplies by, as `num_active_params(shape)` counts them; and the
    keys and values of all tokens of all sequences, those of the new tokens included. Each of them once.

    About 3 lines.
    """
    todo("9.3")


# --- 9.4 -------------------------------------------------------------------------------------------------------------
def mbu(bytes_per_pass: float, seconds_per_pass: float, bandwidth_bytes_per_s: float) -> float:
    """Model bandwidth utilization: the share of the memory's speed that a pass made use of, 1.0 for all of it.

    bytes_per_pass: what the pass had to read, see 9.3. seconds_per_pass: how long it took.
    bandwidth_bytes_per_s: what the memory can deliver.

    A pass that reads 50 bytes in 2 seconds, from a memory of 100 bytes/s, has an MBU of 0.25.

    About 1 line.
    """
    todo("9.4")


# --- 9.5 -------------------------------------------------------------------------------------------------------------
def smallest_compute_bound_batch(
    shape: ModelShape,
    context: int,
    machine: Machine,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> int | None:
    """The batch from which on a decode step is limited by arithmetic and no longer by memory.

    A decode step gives each of `batch` sequences one token more; with it, each has `context` tokens (so `context` - 1
    were there before). Return the smallest batch, 1 or more, at which the time for the operations (9.2) is at least
    the time for the bytes (9.3). Return None where no batch is large enough: such contexts exist.

    For a dense model without a sliding window. You may call `forward_flops` and `forward_bytes` here; where you have
    not written yours, import them from minillm.machine.roofline. A loop over batches never ends where the answer is
    None: work out what one sequence more adds to both sides.

    About 8 lines.
    """
    todo("9.5")
