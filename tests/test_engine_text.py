"""The engine's text: lists of prompts through `LLM.generate`, and many readers at once through `AsyncEngine`."""

import asyncio
import dataclasses

import pytest
from tiny import save_tiny_model

from minillm import LLM, SamplingParams
from minillm.engine import Engine
from minillm.engine.answer import Answer
from minillm.engine.async_engine import AsyncEngine
from minillm.errors import InputError

TEXTS = ["the cat", "the dog sat on", "é", "a much longer text about the cat and the dog on the mat", "x"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return LLM(save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=96), dtype="float32")


def each_alone(llm, params):
    return [llm.generate(text, one) for text, one in zip(TEXTS, params, strict=True)]


PARAMS = [
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=12, temperature=0.9, seed=4, logprobs=2),
    SamplingParams(max_tokens=25, stop=("e", "a"), ignore_eos=True),
    SamplingParams(max_tokens=200, ignore_eos=True),
    SamplingParams(max_tokens=1),
]


def test_a_list_of_prompts_gives_what_each_gives_alone(llm) -> None:
    together = llm.generate(TEXTS, PARAMS)
    for completion, alone in zip(together, each_alone(llm, PARAMS), strict=True):
        assert completion.token_ids == alone.token_ids
        assert (completion.text, completion.finish_reason) == (alone.text, alone.finish_reason)
        assert completion.prompt_token_ids == alone.prompt_token_ids
        assert (completion.logprobs is None) == (alone.logprobs is None)
        for one, other in zip(completion.logprobs or (), alone.logprobs or (), strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert completion.metrics.completion_tokens == len(completion.token_ids)
        assert completion.metrics.kv_bytes == alone.metrics.kv_bytes


def test_one_params_is_for_all_prompts_and_none_is_the_default(llm) -> None:
    params = SamplingParams(max_tokens=3)
    assert [c.token_ids for c in llm.generate(TEXTS, params)] == [
        c.token_ids for c in each_alone(llm, [params] * len(TEXTS))
    ]
    assert llm.generate([]) == []


def test_bad_lists_are_refused_before_anything_runs(llm) -> None:
    with pytest.raises(InputError, match="there are 2 prompts and 1 params"):
        llm.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(InputError, match="params must be SamplingParams"):
        llm.generate(["a"], [{"max_tokens": 3}])
    with pytest.raises(InputError, match="a prompt is a str"):
        llm.generate(["a", 3])
    with pytest.raises(InputError, match="logit_bias names token 1000000"):
        llm.generate(["a"], SamplingParams(logit_bias={10**6: 1.0}))


def test_one_that_cannot_go_on_ends_alone(llm) -> None:
    bad = SamplingParams(max_tokens=4, repetition_penalty=1e-45)
    good = SamplingParams(max_tokens=4)
    broken, whole = llm.generate(["the cat", "the dog"], [bad, good])
    assert (broken.finish_reason, broken.token_ids, broken.text) == ("error", (), "")
    assert broken.error is not None
    assert "no token left to choose" in broken.error
    assert whole.error is None
    assert whole.token_ids == llm.generate("the dog", good).token_ids


def test_progress_is_told_on_stderr(llm, capsys) -> None:
    llm.generate(["the cat", "the dog"], SamplingParams(max_tokens=2, ignore_eos=True), progress=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert "2/2" in told.err
    assert "4 tokens" in told.err
    llm.generate(["the cat"], SamplingParams(max_tokens=2))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", [{"kv_dtype": "int8"}, {"quantize": "int8", "compile": False}])
def test_other_kinds_of_model_take_lists_too(llm, tmp_path, kind) -> None:
    # int8 has groups of 32
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    other = LLM(save_tiny_model(tmp_path / "model", **sizes), dtype="float32", **kind)
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    assert [c.token_ids for c in other.generate(TEXTS, params)] == [
        c.token_ids for c in each_alone(other, [params] * len(TEXTS))
    ]


def engine_of(llm, **sizes) -> Engine:
    return Engine(llm.model, **{"num_blocks": 40, "block_size": 4, "max_batch_size": 4, **sizes})


def serve(llm, use, **sizes):
    """Run `use(serving)` on an engine of its own; at its end nothing may be left in it."""

    async def main():
        engine = engine_of(llm, **sizes)
        async with AsyncEngine(engine, llm.tokenizer) as serving:
            result = await asyncio.wait_for(use(serving), timeout=60)
        assert not engine.has_work
        assert engine.scheduler.pool.num_used == 0
        assert not engine.requests
        return result

    return asyncio.run(main())


async def read(serving, llm, text, params):
    pieces = [piece async for piece in serving.stream(llm.tokenizer.encode(text), params)]
    return "".join(piece.text for piece in pieces), pieces[-1].finish_reason


def test_many_readers_get_their_own_text(llm) -> None:
    async def use(serving):
        jobs = [read(serving, llm, text, one) for text, one in zip(TEXTS * 3, PARAMS * 3, strict=True)]
        return await asyncio.gather(*jobs)

    expected = [(alone.text, alone.finish_reason) for alone in each_alone(llm, PARAMS)]
    assert serve(llm, use) == expected * 3


def test_a_completion_is_as_it_would_be_alone(llm) -> None:
    async def use(serving):
        return await asyncio.gather(
            *(serving.generate(llm.tokenizer.encode(t), p) for t, p in zip(TEXTS, PARAMS, strict=True))
        )

    for completion, alone in zip(serve(llm, use), each_alone(llm, PARAMS), strict=True):
        assert (completion.text, completion.token_ids) == (alone.text, alone.token_ids)


def test_a_reader_that_leaves_takes_its_request_along(llm) -> None:
    long = SamplingParams(max_tokens=80, ignore_eos=True)

    async def use(serving):
        async for piece in serving.stream(llm.tokenizer.encode("the cat"), long):
            if piece.step is not None:
                break  # the generator is closed when it is collected, or here:
        cancelled = asyncio.create_task(read(serving, llm, "the dog", long))
        waiting = [asyncio.create_task(read(serving, llm, text, long)) for text in TEXTS]
        await asyncio.sleep(0.05)
        for task in [cancelled, *waiting[1:]]:
            task.cancel()
        answered = await waiting[0]
        while serving.engine.has_work:
            await asyncio.sleep(0.01)
        return answered

    text, reason = serve(llm, use)
    assert (text, reason) == (llm.generate(TEXTS[0], long).text, "length")


def test_a_reader_that_stops_reading_stops_nobody(llm) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True)

    async def use(serving):
        slow = serving.stream(llm.tokenizer.encode("the cat"), params)
        first = await anext(slow)
        others = await asyncio.gather(*(read(serving, llm, text, params) for text in TEXTS))
        rest = [piece.text async for piece in slow]
        return first.text + "".join(rest), others

    text, others = serve(llm, use)
    assert text == llm.generate("the cat", params).text
    assert [one for one, _ in others] == [llm.generate(t, params).text for t in TEXTS]


def test_a_wrong_request_is_refused_to_its_reader_alone(llm) -> None:
    async def use(serving):
        good = asyncio.create_task(read(serving, llm, "the cat", SamplingParams(max_tokens=20, ignore_eos=True)))
        with pytest.raises(InputError, match="outside the vocabulary"):
            await serving.generate([10**6], SamplingParams(max_tokens=1))
        with pytest.raises(InputError, match="the prompt is empty"):
            async for _ in serving.stream([], SamplingParams(max_tokens=1)):
                pass
        return await good

    assert serve(llm, use)[1] == "length"


def test_a_failing_pass_is_told_to_its_readers_and_the_engine_goes_on(llm, monkeypatch) -> None:
    async def use(serving):
        with monkeypatch.context() as patch:
            patch.setattr(llm.model, "logits", lambda hidden: (_ for _ in ()).throw(RuntimeError("broken")))
            with pytest.raises(RuntimeError, match="broken"):
                await serving.generate(llm.tokenizer.encode("the cat"), SamplingParams(max_tokens=3))
        return await serving.generate(llm.tokenizer.encode("the cat"), SamplingParams(max_tokens=3))

    assert serve(llm, use).token_ids == llm.generate("the cat", SamplingParams(max_tokens=3)).token_ids


def test_a_text_that_cannot_be_made_ends_alone(llm, monkeypatch) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    take = Answer.take

    def failing(answer, output):
        if answer.request.request_id == "bad" and answer.request.num_generated == 3:
            raise ValueError("no such character")
        return take(answer, output)

    async def use(serving):
        with monkeypatch.context() as patch:
            patch.setattr(Answer, "take", failing)
            good = asyncio.create_task(read(serving, llm, "the cat", params))
            with pytest.raises(ValueError, match="no such character"):
                await serving.generate(llm.tokenizer.encode("the dog"), params, "bad")
            return await good

    assert serve(llm, use) == (llm.generate("the cat", params).text, "length")


def test_closing_ends_what_runs(llm) -> None:
    params = SamplingParams(max_tokens=90, ignore_eos=True)

    async def main():
        engine = engine_of(llm)
        async with AsyncEngine(engine, llm.tokenizer) as serving:
            stream = serving.stream(llm.tokenizer.encode("the cat"), params)
            pieces = [await anext(stream)]
        pieces += [piece async for piece in stream]
        assert engine.scheduler.pool.num_used == 0
        with pytest.raises(InputError, match="the engine is not running"):
            await serving.generate([1], params)
        return pieces

    pieces = asyncio.run(main())
    assert pieces[-1].finish_reason == "abort"
    whole = llm.generate("the cat", dataclasses.replace(params)).text
    assert whole.startswith("".join(piece.text for piece in pieces))
