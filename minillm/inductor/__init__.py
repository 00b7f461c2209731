"""A decode step compiled by torch's own compiler, Inductor: C++ on a CPU, Triton kernels in a CUDA graph on a GPU."""

from minillm.inductor.torch_pass import TorchDecodePass

__all__ = ["TorchDecodePass"]
