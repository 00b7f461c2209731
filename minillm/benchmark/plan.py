"""What is measured: the lengths, the batches, and the modes (a dtype, and how weights are quantized)."""

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.errors import InputError

NOT_QUANTIZED = "none"
QUANTIZATIONS = (NOT_QUANTIZED, "int8", "int4", "file")
PLAIN_TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""What llama.cpp calls our dtypes."""
QUANTIZED_BY_LLAMA_CPP = {"int8": ("Q8_0",), "int4": ("Q4_1", "Q4_0")}
"""The formats of llama.cpp with as many bits per weight as ours. int4 is set beside both of its plain ones."""


@dataclass(frozen=True)
class Plan:
    """Prompts that are prefilled (tokens), and decode passes at each of `contexts` with each of `batches`.

    `new_tokens` come out of each decode measurement: one less passes are timed, for the first token is prefill's.
    Raises InputError where a number makes no sense.
    """

    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    new_tokens: int
    runs: int

    def __post_init__(self) -> None:
        named = (("--prompt-tokens", self.prompts), ("--context", self.contexts), ("--batch", self.batches))
        for flag, values, least in (*((*pair, 1) for pair in named), ("--runs", (self.runs,), 1)):
            for value in values:
                if not least <= value < 2**31:
                    raise InputError(f"{flag} must be at least {least} and below 2^31, not {value}")
            if len(set(values)) < len(values):
                raise InputError(f"{flag} names {max(values, key=list(values).count)} twice: once is enough")
        if not 2 <= self.new_tokens < 2**31:
            raise InputError(
                f"--new-tokens must be at least 2 (a rate needs two points in time), not {self.new_tokens}"
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every length that is prefilled, as a prompt or to decode behind it, from the shortest on."""
        return tuple(sorted({*self.prompts, *self.contexts}))

    @property
    def passes(self) -> int:
        """Decode passes of one measurement."""
        return self.new_tokens - 1

    def room(self, length: int) -> int:
        """Tokens for which a cache needs room that holds `length` of them first."""
        return length + self.new_tokens

    def check_context(self, longest: int) -> None:
        """Raises InputError where a sequence would grow beyond the model's context."""
        needed = self.room(max(self.lengths))
        if needed > longest:
            raise InputError(
                f"the longest prompt or context and --new-tokens are {needed:,} tokens in all, more than this model's "
                f"context of {longest:,}"
            )


@dataclass(frozen=True)
class Mode:
    """A dtype by its name, and the quantization of the weights: "none", "int8", "int4" or "file"."""

    dtype: str
    quantize: str = NOT_QUANTIZED

    @property
    def name(self) -> str:
        """As it is printed: "bfloat16", or "int4" where the dtype is that of the activations only."""
        return self.dtype if self.quantize == NOT_QUANTIZED else f"{self.quantize} ({self.dtype})"

    @property
    def gguf_types(self) -> tuple[str, ...]:
        """llama.cpp's counterparts."""
        if self.quantize == NOT_QUANTIZED:
            return (PLAIN_TYPES[self.dtype],)
        return QUANTIZED_BY_LLAMA_CPP.get(self.quantize, ())


def modes(dtypes: Sequence[str], quantizations: Sequence[str]) -> tuple[Mode, ...]:
    """Every dtype with every quantization, none of them twice: "auto" may be another name of one that is there."""
    return tuple(dict.fromkeys(Mode(dtype, quantize) for dtype in dtypes for quantize in quantizations))
