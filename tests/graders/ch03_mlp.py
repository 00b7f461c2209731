"""3.5: the MLP, against the formula in float64."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from graders import ch03_oracle as oracle
from graders.ch03_oracle import BATCH, NEW
from graders.common import UNTOUCHED, random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.model import SwiGLU


def _mlp_case(given: str, batch: int, new: int, bias: bool = False, size: float = 1.0) -> Case:
    x = random(batch, new, 20, seed=8) * size

    def module() -> SwiGLU:
        return oracle.filled(SwiGLU(oracle.config(bias)))

    def observe(f: Function) -> Observation:
        own = x.clone()
        with oracle.without_shape_checks():
            result = f(module(), own)
        return {"the result": result, "x afterwards": touched(x=(own, x))}

    def want() -> Observation:
        return {"the result": oracle.mlp(module(), x).float(), "x afterwards": UNTOUCHED}

    return Case(f"a SwiGLU with E = 20, I = 28; x [{batch}, {new}, 20]: {given}", observe, want)


def _gated(
    gate: Callable[[Tensor], Tensor] = F.silu,
    mix: Callable[[Tensor, Tensor], Tensor] = torch.mul,
    end: Callable[[SwiGLU, Tensor, Tensor], Tensor] = lambda self, middle, x: self.down_proj(middle),
    cut: Callable[[Tensor], tuple[Tensor, ...]] = lambda both: both.chunk(2, dim=-1),
) -> Function:
    """The module's forward; each argument replaces one of its decisions."""

    def mlp_forward(self: SwiGLU, x: Tensor) -> Tensor:
        first, second = cut(self.gate_up_proj(x))
        return end(self, mix(gate(first), second), x)

    return mlp_forward


def _identity(x: Tensor) -> Tensor:
    return x


def _weights_by_hand(self: SwiGLU, x: Tensor) -> Tensor:
    """Right without biases."""
    gate, up = (x @ self.gate_up_proj.weight.T).chunk(2, dim=-1)
    return (F.silu(gate) * up) @ self.down_proj.weight.T


def _two_products(self: SwiGLU, x: Tensor) -> Tensor:
    weights, biases = self.gate_up_proj.weight.chunk(2), self.gate_up_proj.bias
    gate_bias, up_bias = (None, None) if biases is None else biases.chunk(2)
    gate, up = F.linear(x, weights[0], gate_bias), F.linear(x, weights[1], up_bias)
    return self.down_proj(gate * torch.sigmoid(gate) * up)


def _in_slices(self: SwiGLU, x: Tensor) -> Tensor:
    both = self.gate_up_proj(x)
    middle = both.shape[-1] // 2
    gate, up = both[..., :middle], both[..., middle:]
    return self.down_proj(up * gate / (1 + torch.exp(-gate)))


MLP = Grader(
    cases=[
        _mlp_case("a chunk", BATCH, NEW),
        _mlp_case("a decode step", 1, 1),
        _mlp_case("a chunk, in a model with biases", BATCH, NEW, bias=True),
        _mlp_case("large numbers, where the gate is open or shut", 3, 4, size=2.0),
    ],
    mutants=[
        Mutant(
            _gated(_identity, lambda gate, up: gate * F.silu(up)),
            "silu is on the wrong half. The first half of the projection is the gate, and the gate goes through silu.",
        ),
        Mutant(
            _gated(_identity, lambda gate, up: F.silu(gate * up)),
            "silu comes after the product. Only the gate goes through it, and then multiplies up.",
        ),
        Mutant(
            _gated(mix=lambda gate, up: gate * F.silu(up)),
            "Both halves go through silu. Up passes as it is: that it can be of any size and sign is the point.",
        ),
        Mutant(
            _gated(_identity),
            "Nothing goes through silu. Without it the gate is a plain product: the gate is silu(gate).",
        ),
        Mutant(
            _gated(mix=lambda gate, up: gate),
            "Up is forgotten: you narrow the gate itself. It multiplies up, number by number.",
        ),
        Mutant(
            _gated(mix=lambda gate, up: up),
            "The gate is forgotten: you narrow up as it is. silu(gate) multiplies it, number by number.",
        ),
        Mutant(
            _gated(cut=lambda both: both.chunk(2)),
            "chunk(2) cuts the first axis, the sequences. The gate and up lie side by side in the last: chunk(2,"
            " dim=-1).",
        ),
        Mutant(
            _gated(F.gelu),
            "That is GELU, which makes GEGLU. This model's gate is silu: z * sigmoid(z).",
        ),
        Mutant(
            _gated(torch.sigmoid),
            "The gate is sigmoid(z) alone, the plain GLU. silu is z * sigmoid(z).",
        ),
        Mutant(
            _gated(F.relu),
            "The gate is relu. silu is smooth, and lets a little of the negative through: z * sigmoid(z).",
        ),
        Mutant(
            _gated(mix=torch.add),
            "You add up to the gate. The gate *multiplies*: it decides how much of each number passes.",
        ),
        Mutant(
            _gated(cut=lambda both: (both[..., 0::2], both[..., 1::2])),
            "You take every second number for the gate. The projection gives all of the gate first, then all of up:"
            " chunk(2, dim=-1).",
        ),
        Mutant(
            _gated(end=lambda self, middle, x: middle),
            "down_proj is missing: you return I numbers for each token, where the stream has E.",
        ),
        Mutant(
            _gated(end=lambda self, middle, x: x + self.down_proj(middle)),
            "You add x here. The layer does that (3.6), and it adds to the stream as it was *before* the norm.",
        ),
        Mutant(
            _weights_by_hand,
            "The biases are lost. Call the projections, self.gate_up_proj(x), instead of multiplying with their"
            " weights: some models have a bias.",
        ),
        Mutant(
            _gated(cut=lambda both: both.chunk(2, dim=1) if both.shape[1] > 1 else (both, both)),
            "You cut the axis of the tokens. The gate and up lie side by side in the last axis: chunk(2, dim=-1).",
            begins="RuntimeError: The size of tensor a (3) must match",
        ),
    ],
    alternatives=[_two_products, _in_slices, _gated(lambda gate: gate * gate.sigmoid())],
)
