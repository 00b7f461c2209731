"""`--compile`: kernels made for this machine, where there is a way to make them."""

import contextlib
from collections.abc import Callable

from minillm.decode_pass import DecodePass
from minillm.errors import InputError, MissingError
from minillm.model import Llama


def wants_compiled(compile: bool | None, quantize: str | None) -> bool:
    """What a user asked for; where nothing was said, what is quantized is compiled: nothing else is fast there."""
    return quantize is not None if compile is None else compile


def compile_decode(model: Llama, say: Callable[[str], None]) -> bool:
    """Give the model a decode pass. False, and one sentence, where it cannot be.

    On the CPU it is the one in C++ (`native/`). For prompts, a pass of their own comes with it, unless PyTorch is
    faster on this processor, and row kernels for what that one doesn't take. The first time on a machine takes some
    seconds, for the compiler, and what it made is kept. On CUDA it is the one that Inductor makes of the layers,
    recorded as a CUDA graph (`inductor/`).
    """
    try:
        model.decode_pass = _decode_pass(model)
    except (MissingError, InputError) as error:
        say(f"going on without compiled decode: {error}")
        return False
    return True


def _decode_pass(model: Llama) -> DecodePass:
    if model.device.type == "cuda":
        from minillm.inductor.torch_pass import TorchDecodePass

        return TorchDecodePass(model)
    from minillm.native.decode_pass import NativeDecodePass
    from minillm.native.prompt_pass import NativePromptPass
    from minillm.native.rows import NativeRows

    decode_pass = NativeDecodePass(model)
    model.use_kernels(NativeRows())
    model.prompt_pass = None  # one from before may be for weights that are elsewhere now
    with contextlib.suppress(InputError):  # sizes that it doesn't take, or PyTorch is faster: the row kernels are there
        model.prompt_pass = NativePromptPass(model)
    return decode_pass
