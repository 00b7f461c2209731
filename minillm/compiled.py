"""`--compile`: a decode pass made for this machine, where there is a way to make one."""

from collections.abc import Callable

from minillm.errors import InputError, MissingError
from minillm.model import Llama


def compile_decode(model: Llama, say: Callable[[str], None]) -> bool:
    """Give the model a decode pass: on the CPU the one in C++ (`native/`). False, and one sentence, where it cannot be.

    The first time on a machine takes about ten seconds, for the compiler; what it made is kept.
    """
    from minillm.native.decode_pass import NativeDecodePass

    try:
        model.decode_pass = NativeDecodePass(model)
    except (MissingError, InputError) as error:
        say(f"going on without compiled decode: {error}")
        return False
    return True
