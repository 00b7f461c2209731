"""Graders of chapter 12: a mixed step, steps of two policies, a step of the scheduler, who gives way, how many."""

from graders.ch12_limits import LARGEST_BATCH
from graders.ch12_scheduler import CONTINUE_RUNNING, MAKE_ROOM
from graders.ch12_steps import DECODE_STEPS, STEP_WORK

GRADERS = {
    "12.1": STEP_WORK,
    "12.2": DECODE_STEPS,
    "12.3": CONTINUE_RUNNING,
    "12.4": MAKE_ROOM,
    "12.5": LARGEST_BATCH,
}
