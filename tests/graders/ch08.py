"""Graders of chapter 8: bytes to characters, stop strings, and the pieces of a request."""

from graders.ch08_bytes import UNFINISHED_LENGTH
from graders.ch08_decode import DECODE
from graders.ch08_matcher import STOP_MATCHER_ADD
from graders.ch08_pieces import PIECE_OF
from graders.ch08_stops import FIRST_STOP, HELD_LENGTH

GRADERS = {
    "8.1": UNFINISHED_LENGTH,
    "8.2": DECODE,
    "8.3": HELD_LENGTH,
    "8.4": FIRST_STOP,
    "8.5": STOP_MATCHER_ADD,
    "8.6": PIECE_OF,
}
