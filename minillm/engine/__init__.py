"""Many requests at once: one pass for all of them, one pool of KV blocks, one policy for who comes next."""

from minillm.engine.engine import Engine, Output
from minillm.engine.request import Request

__all__ = ["Engine", "Output", "Request"]
