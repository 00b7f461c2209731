"""What a histogram of /metrics says of its quantiles."""

import math
from collections.abc import Sequence

from minillm.errors import InputError


def quantile(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float:
    """The value below which the share `q` of the observations lies, as far as buckets can tell.

    bounds: the upper bounds of the buckets (`le`), increasing, above 0, the last one infinite. counts: for each, how
    many observations are at most that large, so the last is the number of all. Within a bucket, observations are
    taken to lie evenly. What lies in the last bucket has no upper bound: the answer is the largest bound there is.
    nan without observations. As Prometheus' `histogram_quantile`. Raises InputError for a q that is not above 0 and
    at most 1.
    """
    if not 0 < q <= 1:
        raise InputError(f"a quantile is above 0 and at most 1, not {q}")
    if not counts or counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    bucket = next(i for i, count in enumerate(counts) if count >= rank)
    if math.isinf(bounds[bucket]):
        return bounds[-2] if len(bounds) > 1 else math.nan
    below, low = (counts[bucket - 1], bounds[bucket - 1]) if bucket else (0, 0.0)
    return low + (bounds[bucket] - low) * (rank - below) / (counts[bucket] - below)
