"""Graders of chapter 17: events out of bytes, a reader who leaves, room, a queue, quantiles, keys."""

from graders.ch17_events import FEED
from graders.ch17_keys import IS_AUTHORIZED
from graders.ch17_leave import LEAVE
from graders.ch17_quantile import QUANTILE
from graders.ch17_room import CHECK_ROOM, LONGEST_QUEUE

GRADERS = {
    "17.1": FEED,
    "17.2": LEAVE,
    "17.3": CHECK_ROOM,
    "17.4": LONGEST_QUEUE,
    "17.5": QUANTILE,
    "17.6": IS_AUTHORIZED,
}
