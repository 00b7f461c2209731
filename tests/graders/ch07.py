"""Graders of chapter 7: the steps from logits to a choice, the draw, and perplexity."""

from graders.ch07_draw import DRAW, PERPLEXITY
from graders.ch07_filters import MIN_P, TOP_P
from graders.ch07_logits import REPETITION_PENALTY, TEMPERATURE
from graders.ch07_order import PROCESS_LOGITS

GRADERS = {
    "7.1": TEMPERATURE,
    "7.2": REPETITION_PENALTY,
    "7.3": MIN_P,
    "7.4": TOP_P,
    "7.5": PROCESS_LOGITS,
    "7.6": DRAW,
    "7.7": PERPLEXITY,
}
