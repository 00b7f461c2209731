"""Many requests at once: one pass for all of them, one pool of KV blocks, one policy for who comes next."""

from minillm.engine.engine import Engine, Output
from minillm.engine.log import StepLog, StepRecord
from minillm.engine.request import Request
from minillm.engine.static_scheduler import StaticScheduler

__all__ = ["Engine", "Output", "Request", "StaticScheduler", "StepLog", "StepRecord"]
