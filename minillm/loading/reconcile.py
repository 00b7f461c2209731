"""A model and its tokenizer, brought together: do they fit, and which tokens end a text? No torch."""

from dataclasses import replace

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.tokenizer import Tokenizer


def reconcile(config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The config, with the tokenizer's end-of-sequence ids among its own: any of them may be the one that is stated.

    Raises InputError if the tokenizer makes ids for which the model has no embedding.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens and the model {config.vocab_size:,}:"
            " they do not belong together"
        )
    return replace(config, eos_token_ids=tuple(sorted({*config.eos_token_ids, *tokenizer.end_ids})))
