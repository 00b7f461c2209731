"""Graders of chapter 3: the functions of a row, the modules of a layer, and the whole pass."""

from graders.ch03_attention import ATTENTION
from graders.ch03_layer import LAYER
from graders.ch03_mlp import MLP
from graders.ch03_model import PASS
from graders.ch03_rows import RMS_NORM
from graders.ch03_turns import FREQUENCIES, TURN

GRADERS = {
    "3.1": RMS_NORM,
    "3.2": FREQUENCIES,
    "3.3": TURN,
    "3.4": ATTENTION,
    "3.5": MLP,
    "3.6": LAYER,
    "3.7": PASS,
}
