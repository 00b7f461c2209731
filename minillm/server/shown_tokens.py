"""Which tokens a text is made of: those that have an entry in an answer's logprobs, whole or in chunks."""

import math
from collections import deque

from minillm.decode import ending_ids
from minillm.detokenizer import StreamDecoder
from minillm.generation import Completion as Generated
from minillm.generation import TokenLogprob
from minillm.sampling_params import SamplingParams
from minillm.server.prepare import Served

Shown = tuple[TokenLogprob, int]
"""A token, and the character of the text at which it begins."""


class ShownTokens:
    """The tokens of a growing text. A token is shown when its first character is.

    Never shown: the token that ended the request, and those that lie in a matched stop string.
    """

    def __init__(self, params: SamplingParams, served: Served) -> None:
        self._decoder = StreamDecoder(served.tokenizer)
        self._ends = ending_ids(params, served.config)
        self._offset = 0
        self._waiting: deque[Shown] = deque()

    def add(self, token: TokenLogprob) -> None:
        """The next token, of which nothing may be certain yet."""
        self._waiting.append((token, self._offset))
        self._offset += len(self._decoder.add(token.token_id))

    def shown(self, characters: int, finish_reason: str | None) -> list[Shown]:
        """What is shown now, and was not before: the text has `characters`, and is at its end if there is a reason."""
        waiting = self._waiting
        by_its_end = finish_reason == "stop" and bool(waiting) and waiting[-1][0].token_id in self._ends
        if by_its_end:
            waiting.pop()
        all_of_them = by_its_end or finish_reason not in (None, "stop")
        shown = []
        while waiting and (all_of_them or waiting[0][1] < characters):
            token, offset = waiting.popleft()
            shown.append((token, min(offset, characters)))
        return shown


def shown_tokens(generated: Generated, params: SamplingParams, served: Served) -> list[Shown]:
    """The shown tokens of a text that is whole; where no log-probabilities were asked for, they are not known."""
    tokens = ShownTokens(params, served)
    for one in generated.logprobs or [TokenLogprob(token_id, math.nan, ()) for token_id in generated.token_ids]:
        tokens.add(one)
    return tokens.shown(len(generated.text), generated.finish_reason)
