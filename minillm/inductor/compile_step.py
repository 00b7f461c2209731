"""From a function of tensors to machine code, once: `torch.export` traces it, Inductor compiles what was traced.

Why not `torch.compile`? It decides at every call whether the code at hand fits the arguments, and compiles anew where
it does not. That decision costs some 60 µs per call, which for 30 layers is 2 ms of a step of 15; and
"never recompiles" is then something to hope for. An exported graph has no such decision: the axes declared as dynamic
take any length, everything else is fixed, and there is nothing left that could compile a second time.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minillm.errors import InputError

OPTIONS: dict[str, Any] = {
    # Otherwise what is cheap is computed again wherever it is read: a normalised row anew for each row of a matrix.
    "realize_reads_threshold": 0,
    # a * b + c in one instruction and one rounding.
    "cpp.enable_floating_point_contract_flag": "fast",
}
"""How Inductor compiles these graphs, beside its defaults."""


def check_compiler(device: torch.device) -> None:
    """Raise InputError, with the way out, where Inductor could not compile for `device`."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise InputError(
            "compiled decoding needs a C++ compiler, and none was found: install g++ or clang++, or leave --compile out"
        ) from None
    if device.type == "cuda" and not has_triton():
        raise InputError(
            f"compiled decoding on {device} needs triton, which cannot be used here: install it, or leave --compile out"
        )


def compile_step(step: torch.nn.Module, args: tuple[Any, ...], dynamic_shapes: Any) -> Callable[..., Tensor]:
    """Machine code for `step`, for arguments shaped like `args` except along the axes marked in `dynamic_shapes`.

    The code is called with the same arguments, flattened: the leaves of their tree in order, a None where a None was.
    `dynamic_shapes` is as for `torch.export.export`. Inductor keeps compiled code on disk (TORCHINDUCTOR_CACHE_DIR),
    so that the next process only traces. Raises InputError where the C++ compiler is there and fails.
    """
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.exc import CppCompileError
    from torch.fx.graph import CodeGen

    with torch.no_grad():
        graph = torch.export.export(step, args, dynamic_shapes=dynamic_shapes, strict=False).module().graph
        for checks in graph.find_nodes(op="call_module", target="_guards_fn"):
            graph.erase_node(checks)  # `hidden` has checked, once per step and not once per layer
        # Called with flat arguments: taking a tree apart at every call costs 15 µs.
        graph.set_codegen(CodeGen())
        graph_module = torch.fx.GraphModule(torch.nn.Module(), graph)
        inputs = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
        try:
            compiled: Any = compile_fx(graph_module, inputs, config_patches=OPTIONS)
        except CppCompileError as error:
            raise InputError(
                "compiled decoding failed in the C++ compiler "
                f"({str(error).strip().splitlines()[-1]}): leave --compile out"
            ) from error
    return lambda *leaves: compiled(*leaves)[0]
