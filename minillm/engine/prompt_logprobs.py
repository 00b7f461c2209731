"""What the model held of a prompt's own tokens, for requests that ask (`prompt_logprobs`).

Each row of a pass says what may come behind its token; in a prompt it is known what does. So such a request needs no
pass of its own, but a row of logits for every token, and no token's row may be left out: it takes nothing from the
prefix cache until all its rows have been seen.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.engine.request import Request
from minillm.model import Llama
from minillm.sampler import Sampled, top_logprobs

ROWS = 64
"""Rows of logits at a time: 12.6 MB for SmolLM2's vocabulary in float32."""


def take_prompt_logprobs(model: Llama, request: Request, hidden: Float[Tensor, "rows hidden"]) -> None:
    """Let the request's `prompt_logprobs` grow by what these rows say: the ones from `num_computed` on."""
    found, prompt = request.prompt_logprobs, request.prompt_ids
    if not found:
        found.append(None)  # nothing precedes the first token
    first = len(found) - 1 - request.num_computed  # the row behind which the next token is
    last = min(len(hidden), len(prompt) - 1 - request.num_computed)
    for start in range(first, last, ROWS):
        rows = hidden[start : min(start + ROWS, last)]  # [n, E]
        token_ids = prompt[len(found) : len(found) + len(rows)]
        logprobs = model.logits(rows).float().log_softmax(-1)  # [n, V]
        chosen = logprobs.gather(1, torch.tensor(token_ids, device=rows.device)[:, None]).squeeze(1)  # [n]
        for row, token_id, logprob in zip(logprobs, token_ids, chosen.tolist(), strict=True):
            found.append(Sampled(token_id, logprob, top_logprobs(row, request.params.prompt_logprobs)))
