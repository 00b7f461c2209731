"""LLM: the front door. A model, its tokenizer, and the three ways to ask it for text."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch

from minillm.compiled import compile_decode, wants_compiled
from minillm.device import clock, dtype_name, pick_device, pick_dtype
from minillm.engine.offline import generate_many
from minillm.errors import InputError
from minillm.generation import Completion, Generation
from minillm.kv_cache import Cache, KVCache, NoCache, new_kv_cache
from minillm.loading import DEFAULT_MODEL, load
from minillm.loading.loader import tell_on_stderr
from minillm.machine.limits import known_limits
from minillm.page import check_destination
from minillm.rope import is_turned_alike
from minillm.sampler import SamplingParams

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model that is ready to generate.

    model: an alias ("smollm2-135m"), a directory with config.json and safetensors, a .gguf file, or a hub id
    ("org/name"). device: "auto", "cpu", "cuda", "cuda:N". dtype: "auto", "float32", "bfloat16", "float16".
    quantize: "int8", "int4", or "file" (a GGUF file's own blocks): how the matrices are kept. kv_dtype: "int8" for a
    cache of 8 bits. compile: by compiled kernels (see `compiled`); None: where the weights are quantized, for which
    nothing else is fast. Where it cannot be compiled, one sentence says so, and the request runs without.

    `generate` and `stream` continue text as it stands; `chat` renders messages with the model's chat template.
    `tokenizer`, `model` and `config` are the parts, for those who compose by hand. `limits` is what was measured of
    this machine (by `minillm limits`), None before it was; with it, metrics have a ceiling and an MBU.

    Raises MissingError (a FileNotFoundError) or InputError (a ValueError) with one sentence for what cannot be used.
    """

    def __init__(
        self,
        model: str | Path | Any = DEFAULT_MODEL,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        quantize: str | None = None,
        kv_dtype: str | None = None,
        compile: bool | None = None,
    ) -> None:
        if not isinstance(model, str | Path):
            raise InputError(f"a model is named by a str or a Path, not by {type(model).__name__}")
        picked = pick_device(device)
        if kv_dtype not in (None, "auto", "int8"):
            raise InputError(f"unknown kv_dtype {kv_dtype!r}: use int8, or auto for the model's own dtype")
        self.model, self.tokenizer = load(model, device=picked, dtype=pick_dtype(dtype, picked), quantize=quantize)
        self.kv_dtype = torch.int8 if kv_dtype == "int8" else self.model.dtype
        if wants_compiled(compile, quantize):
            compile_decode(self.model, tell_on_stderr)
        self.config = self.model.config
        self.limits = known_limits(self.model.device)

    @overload
    def generate(self, prompt: str, params: SamplingParams | None = ...) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: list[str] | tuple[str, ...],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        timeline: str | Path | None = None,
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Any,
        params: SamplingParams | Any = None,
        *,
        progress: bool = False,
        timeline: str | Path | None = None,
    ) -> Completion | list[Completion]:
        """Continue one prompt, or several. Several are computed together (see `engine`): each gets the tokens that it
        would get alone (in float32; in half precision, rounding may decide between two nearly equal ones).

        params: for all prompts, or as many as there are prompts. progress: show a bar on stderr. Every prompt is
        checked before any is run; one that then cannot go on ends alone, with finish_reason "error". timeline: a file
        for a web page that shows which request was computed when, and what the cache held.
        """
        if timeline is not None:
            self._check_timeline(prompt, Path(timeline))
        if not isinstance(prompt, list | tuple):
            if _params(params).prompt_logprobs is not None:  # which come with the engine's passes
                return self.generate([_text(prompt)], [params])[0]
            return self.start(_text(prompt), params).run()
        texts = [_text(one) for one in prompt]
        each = list(params) if isinstance(params, list | tuple) else [params] * len(texts)
        if len(each) != len(texts):
            raise InputError(f"there are {len(texts)} prompts and {len(each)} params: give one for all, or one each")
        requests = [(self._checked_ids(text), _params(one)) for text, one in zip(texts, each, strict=True)]
        for _, one in requests:
            one.check_against_vocabulary(self.config.vocab_size)
        if not self.config.turns_by_length:  # which one pass over sequences of several lengths cannot do
            page = None if timeline is None else Path(timeline)
            return generate_many(
                self.model, self.tokenizer, requests, kv_dtype=self.kv_dtype, progress=progress, timeline=page
            )
        return [self._request(ids, one, self.new_cache(len(ids) + one.max_tokens)).run() for ids, one in requests]

    def stream(self, prompt: str | Any, params: SamplingParams | None = None) -> Iterator[str]:
        """The completion of `prompt`, piece by piece; joined, the pieces are `generate(prompt, params).text`."""
        return _texts(self.start(_text(prompt), params))

    def chat(self, messages: Messages | Any, params: SamplingParams | None = None, **variables: Any) -> Completion:
        """The assistant's answer to `messages` ([{"role": "user", "content": "hi"}, ...]).

        variables: what the model's chat template reads besides: tools=[{...}, ...] (each a JSON schema),
        enable_thinking=False, documents=[...]. InputError for one that it does not read.
        """
        return self.start(_messages(messages), params, variables=variables).run()

    def stream_chat(
        self, messages: Messages | Any, params: SamplingParams | None = None, **variables: Any
    ) -> Iterator[str]:
        """The assistant's answer, piece by piece."""
        return _texts(self.start(_messages(messages), params, variables=variables))

    def start(
        self,
        prompt: str | Messages,
        params: SamplingParams | Any = None,
        *,
        use_cache: bool = True,
        cache: KVCache | None = None,
        cached_ids: Sequence[int] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> Generation:
        """A request that runs as it is iterated over. A string is continued; messages are answered (`variables`: see
        `chat`).

        use_cache=False computes the whole sequence again at each token: ever slower, and in float32 the same tokens.
        cache, cached_ids: a cache to go on with and the ids whose keys and values it holds. What the new prompt
        shares with them from the start is not computed again; the rest of the cache is overwritten.
        """
        started = clock(self.model.device)
        params = _params(params)
        if isinstance(prompt, str):
            if variables:
                raise InputError(f"a text is continued as it stands, without {', '.join(variables)}: give messages")
            ids = self.tokenizer.encode(prompt)
        else:
            ids = self.tokenizer.encode_chat(prompt, **(variables or {}))
        tokenize_s = clock(self.model.device) - started
        self._check_prompt(ids)
        params.check_against_vocabulary(self.config.vocab_size)
        if cache is not None:
            if not use_cache:
                raise InputError("use_cache=False and a cache contradict each other: give one of them")
            shared = min(_shared_prefix(ids, cached_ids), len(ids) - 1)
            cache.truncate(shared if self._keys_serve(cache.length, shared, len(ids)) else 0)
        elif use_cache:
            cache = self.new_cache(len(ids) + params.max_tokens)
        kept: Cache = NoCache(self.config, self.model.device) if cache is None else cache
        return self._request(ids, params, kept, started=started, tokenize_s=tokenize_s)

    def _keys_serve(self, held: int, shared: int, wanted: int) -> bool:
        """Whether the first `shared` of `held` cached tokens can begin a sequence of `wanted` tokens.

        Where keys are turned by the length of the sequence (see `is_turned_alike`), they have to be those of a sequence
        like this one. Nor is a cache left that is shorter than its keys say: this request may be stopped before its
        prefill, and the next one takes the cache's length at its word. Under dynamic scaling a sequence may grow on its
        keys, as it does in transformers; a shorter one would meet keys of a longer one's base.
        """
        scaling = self.config.rope_scaling
        if scaling is not None and scaling.kind == "dynamic" and held > scaling.original_max_position_embeddings:
            return wanted >= held and shared == held
        return all(is_turned_alike(self.config, length, wanted) for length in (held, shared))

    def _request(self, ids: Sequence[int], params: SamplingParams, cache: Cache, **times: float) -> Generation:
        if params.prompt_logprobs is not None:
            raise InputError(
                "prompt_logprobs come with generate alone, and not for a model whose rope scaling turns keys by the"
                " length of the sequence: leave them out"
            )
        bandwidth = self.limits.bandwidth_bytes_per_s if self.limits else None
        return Generation(self.model, self.tokenizer, ids, params, cache, bandwidth_bytes_per_s=bandwidth, **times)

    def _check_timeline(self, prompt: Any, page: Path) -> None:
        """Raise InputError if there will be no timeline, or it could not be written."""
        if not isinstance(prompt, list | tuple):
            raise InputError("a timeline shows requests beside each other: give a list of prompts")
        if self.config.turns_by_length:
            raise InputError(
                "a timeline shows requests that are computed together, and this model's run one by one, for its rope"
                " scaling turns keys by each sequence's length: leave the timeline out"
            )
        check_destination(page)

    def new_cache(self, max_seq_len: int) -> KVCache:
        """An empty cache for one sequence of up to max_seq_len tokens, or of the model's context if that is less."""
        room = min(max_seq_len, self.config.max_position_embeddings)
        return new_kv_cache(self.config, room, device=self.model.device, dtype=self.kv_dtype)

    def __repr__(self) -> str:
        """What it is made of: enough to tell two of them apart in a notebook."""
        c, m = self.config, self.model
        return (
            f"LLM({m.num_parameters / 1e6:,.0f}M parameters, {c.num_hidden_layers} layers, "
            f"context {c.max_position_embeddings:,}, {dtype_name(m.dtype)} on {m.device})"
        )

    def _checked_ids(self, text: str) -> list[int]:
        """A text's ids, if a request can begin with them."""
        ids = self.tokenizer.encode(text)
        self._check_prompt(ids)
        return ids

    def _check_prompt(self, ids: Sequence[int]) -> None:
        if not ids:
            raise InputError("the prompt is empty, and this tokenizer adds nothing to it: give at least one character")
        context = self.config.max_position_embeddings
        if len(ids) >= context:
            raise InputError(
                f"the prompt has {len(ids):,} tokens, which leaves no room for an answer in this model's context of"
                f" {context:,} tokens: shorten it"
            )


def _shared_prefix(ids: Sequence[int], cached_ids: Sequence[int]) -> int:
    """How many ids the two sequences have in common from the start."""
    shared = 0
    for one, other in zip(ids, cached_ids, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def _text(prompt: Any) -> str:
    """The prompt itself, if it is text: messages are for `chat`."""
    if not isinstance(prompt, str):
        raise InputError(f"a prompt is a str or a list of them, not {type(prompt).__name__} (messages go to chat)")
    return prompt


def _params(params: Any) -> SamplingParams:
    """The parameters given, or the usual ones."""
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InputError(f"params must be SamplingParams(...), not {type(params).__name__}")
    return params


def _messages(messages: Any) -> Any:
    """The messages themselves, if they are not a text: a text is for `generate`."""
    if isinstance(messages, str):
        raise InputError('chat takes messages, [{"role": "user", "content": "..."}]; generate continues a text')
    return messages


def _texts(generation: Generation) -> Iterator[str]:
    return (piece.text for piece in generation if piece.text)
