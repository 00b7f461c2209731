"""Graders of chapter 4: positions, chunks, the head's one row, and the arithmetic of a prompt."""

from graders.ch04_arithmetic import KNEE, VISIBLE_PAIRS
from graders.ch04_passes import FORWARD_IN_CHUNKS
from graders.ch04_rows import NEXT_TOKEN_LOGITS, POSITIONS

GRADERS = {
    "4.1": POSITIONS,
    "4.2": FORWARD_IN_CHUNKS,
    "4.3": NEXT_TOKEN_LOGITS,
    "4.4": VISIBLE_PAIRS,
    "4.5": KNEE,
}
