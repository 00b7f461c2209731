"""The server through OpenAI's own client: what it streams is what it answers whole is what the library makes."""

import asyncio
import json

import httpx
import openai
import pytest
from serving import NAME, running, tiny_llm

from minillm import LLM, SamplingParams

TEXTS = ["the cat", "the dog sat on", "é", "a much longer text about the cat and the dog on the mat", "x"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return tiny_llm(tmp_path_factory, context=96)


@pytest.fixture(scope="module")
def server(llm):
    with running(llm) as here:
        yield here


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


GREEDY = {"model": NAME, "temperature": 0, "max_tokens": 20, "extra_body": {"ignore_eos": True}}


def streamed(chunks) -> dict:
    """The text, tokens, log-probabilities and finish_reason of each choice of a stream."""
    found: dict[int, dict] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            one = found.setdefault(choice.index, {"text": "", "tokens": [], "logprobs": [], "offsets": [], "end": None})
            assert one["end"] is None, "nothing comes after the finish_reason"
            one["text"] += choice.text if hasattr(choice, "text") else choice.delta.content or ""
            one["end"] = choice.finish_reason
            add_logprobs(one, choice.logprobs)
    return found


def whole(answer) -> dict:
    """The same of an answer that was not streamed."""
    found = {}
    for choice in answer.choices:
        text = choice.text if hasattr(choice, "text") else choice.message.content
        one = {"text": text, "tokens": [], "logprobs": [], "offsets": [], "end": choice.finish_reason}
        add_logprobs(one, choice.logprobs)
        found[choice.index] = one
    return found


def add_logprobs(one, logprobs) -> None:
    if logprobs is None:
        return
    if hasattr(logprobs, "content"):
        one["tokens"] += [entry.token for entry in logprobs.content]
        one["logprobs"] += [round(entry.logprob, 3) for entry in logprobs.content]
        one["offsets"] += [[top.token for top in entry.top_logprobs] for entry in logprobs.content]
    else:
        one["tokens"] += logprobs.tokens
        one["logprobs"] += [value and round(value, 3) for value in logprobs.token_logprobs]
        one["offsets"] += logprobs.text_offset


def test_texts_are_those_of_the_library_streamed_or_not(client, llm) -> None:
    for text in TEXTS:
        alone = llm.generate(text, SamplingParams(max_tokens=20, ignore_eos=True))
        answer = client.completions.create(prompt=text, **GREEDY)
        assert answer.choices[0].text == alone.text
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.prompt_tokens == len(alone.prompt_token_ids)
        assert answer.usage.completion_tokens == 20
        assert streamed(client.completions.create(prompt=text, stream=True, **GREEDY))[0]["text"] == alone.text


def test_chats_are_those_of_the_library_streamed_or_not(client, llm) -> None:
    for text in TEXTS:
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]
        alone = llm.chat(messages, SamplingParams(max_tokens=20, ignore_eos=True))
        answer = client.chat.completions.create(messages=messages, **GREEDY)
        assert answer.choices[0].message.content == alone.text
        assert answer.choices[0].message.role == "assistant"
        assert answer.object == "chat.completion"
        chunks = list(client.chat.completions.create(messages=messages, stream=True, **GREEDY))
        assert streamed(chunks)[0] == whole(answer)[0]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices[0].delta.model_dump(exclude_unset=True) == {}
        assert {chunk.id for chunk in chunks} == {chunks[0].id}
        assert len(chunks) > 5, "a stream comes in pieces"


VARIANTS = {
    "stop": {"stop": ["e", "th"]},
    "several choices": {"n": 3, "temperature": 0.9, "seed": 7},
    "a seed": {"temperature": 1.2, "seed": -3},
    "penalties": {"frequency_penalty": 1.5, "presence_penalty": 0.5},
    "a bias": {"logit_bias": {"70": 20}},
    "one token": {"max_tokens": 1},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_stream_joined_is_the_whole_answer(client, name) -> None:
    fields = {**GREEDY, **VARIANTS[name]}
    text = {"prompt": ["the cat", "é on the mat"], **fields}
    assert streamed(client.completions.create(stream=True, logprobs=2, **text)) == whole(
        client.completions.create(logprobs=2, **text)
    )
    chat = {"messages": [{"role": "user", "content": "the dog"}], **fields}
    found = streamed(client.chat.completions.create(stream=True, logprobs=True, top_logprobs=3, **chat))
    assert found == whole(client.chat.completions.create(logprobs=True, top_logprobs=3, **chat))
    assert found[0]["tokens"]
    assert len(found) == fields.get("n", 1)


@pytest.mark.parametrize("name", VARIANTS)
def test_ids_come_where_they_are_asked_for_and_are_those_of_the_shown_tokens(server, llm, name) -> None:
    fields = {**{k: v for k, v in GREEDY.items() if k != "extra_body"}, **VARIANTS[name], "return_token_ids": True}
    fields |= fields.pop("extra_body", {"ignore_eos": True})
    bodies = {
        "/v1/completions": {**fields, "prompt": ["the cat", "é on the mat"], "logprobs": 0},
        "/v1/chat/completions": {**fields, "messages": [{"role": "user", "content": "the dog"}], "logprobs": True},
    }
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for path, body in bodies.items():
            answer = http.post(path, json=body).json()
            for choice in answer["choices"]:
                shown = choice["logprobs"].get("tokens") or [one["token"] for one in choice["logprobs"]["content"]]
                assert [llm.tokenizer.id_to_bytes(i).decode(errors="replace") for i in choice["token_ids"]] == shown
            bare = {key: value for key, value in body.items() if key != "logprobs"}
            chunks = events(http.post(path, json={**bare, "stream": True}).text)
            assert ids_of(chunks) == ids_of([answer]), "joined, and whether there are logprobs or not"
            per_prompt = 2 if path == "/v1/completions" else 1
            prompts = llm.tokenizer.encode("the cat"), llm.tokenizer.encode("é on the mat")
            if per_prompt == 2:
                each = [i // (len(answer["choices"]) // 2) for i in range(len(answer["choices"]))]
                assert [ids_of([answer])[i][0] for i in range(len(each))] == [list(prompts[i]) for i in each]
            else:
                assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
                assert llm.tokenizer.decode(answer["prompt_token_ids"]).strip().endswith("assistant")
            for wish in (False, None):
                unasked = {**bare, "return_token_ids": wish}
                assert "token_ids" not in http.post(path, json=unasked).text
                assert "token_ids" not in http.post(path, json={**unasked, "stream": True}).text


def events(text: str) -> list[dict]:
    """The JSON of a stream's events."""
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event.startswith("data: {")]


def ids_of(bodies) -> dict[int, tuple]:
    """(prompt's ids, ids) of each choice, of an answer or of a stream's chunks; the prompt's may come but once."""
    found: dict[int, tuple] = {}
    for body in bodies:
        for choice in body["choices"]:
            prompt, ids = found.get(choice["index"], (None, []))
            new = choice.get("prompt_token_ids") or body.get("prompt_token_ids")
            assert prompt is None or new is None or len(bodies) == 1
            found[choice["index"]] = (prompt or new, ids + choice.get("token_ids", []))
    return found


def test_a_seed_gives_each_choice_its_own_text_again(client) -> None:
    fields = {**GREEDY, "n": 3, "temperature": 1.0, "seed": 5, "prompt": "the cat"}
    first, second = (whole(client.completions.create(**fields)) for _ in range(2))
    assert first == second
    assert len({one["text"] for one in first.values()}) > 1


def test_echo_puts_the_prompt_before_each_choice_also_in_a_stream(client) -> None:
    fields = {**GREEDY, "prompt": ["the cat", "é"], "n": 2, "echo": True}
    answer = whole(client.completions.create(**fields))
    assert [one["text"][:2] for one in answer.values()][:2] == ["th", "th"]
    assert all(answer[i]["text"].startswith("é") for i in (2, 3))
    assert streamed(client.completions.create(stream=True, **fields)) == answer


def test_usage_comes_in_a_last_chunk_where_it_was_asked_for(client) -> None:
    fields = {**GREEDY, "messages": [{"role": "user", "content": "the cat"}], "n": 2}
    usage = client.chat.completions.create(**fields).usage
    chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **fields))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == usage.total_tokens == usage.prompt_tokens + 40
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in client.chat.completions.create(stream=True, **fields))


def test_an_echo_with_logprobs_has_those_of_the_prompt_streamed_or_not(client, llm) -> None:
    """What evaluation harnesses ask for: how likely is this text?"""
    from minillm.perplexity import text_logprobs

    for fields in ({}, {"n": 2}, {"max_tokens": 1}):
        fields = {**GREEDY, "prompt": ["the cat sat", "é on the mat"], "echo": True, "logprobs": 2, **fields}
        answer = client.completions.create(**fields)
        choices, asked = whole(answer), fields.get("n", 1)
        assert choices == streamed(client.completions.create(stream=True, **fields))
        for i, choice in enumerate(answer.choices):
            prompt = fields["prompt"][i // asked]
            ids = llm.tokenizer.encode(prompt)
            held = choice.logprobs
            assert held.token_logprobs[0] is held.top_logprobs[0] is None
            assert held.token_logprobs[1 : len(ids)] == pytest.approx(text_logprobs(llm.model, ids), abs=1e-4)
            assert held.tokens[: len(ids)] == [llm.tokenizer.id_to_bytes(one).decode(errors="replace") for one in ids]
            assert len(held.tokens) == len(ids) + fields["max_tokens"]
            assert held.text_offset == sorted(held.text_offset)
            assert held.text_offset[len(ids)] == len(prompt)
            assert choice.text.startswith(prompt)
            alone = client.completions.create(**{**fields, "prompt": prompt, "echo": False}).choices[0].logprobs
            assert held.tokens[len(ids) :] == alone.tokens
            assert [offset - len(prompt) for offset in held.text_offset[len(ids) :]] == alone.text_offset


@pytest.mark.parametrize("chat", [True, False])
def test_each_chunk_says_what_has_been_used_where_that_is_asked_for(client, chat) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    fields = {**GREEDY, "n": 2, "stream": True, "stream_options": options}
    if chat:
        chunks = list(client.chat.completions.create(messages=[{"role": "user", "content": "the dog"}], **fields))
    else:
        chunks = list(client.completions.create(prompt="the dog", **fields))
    *parts, last = chunks
    used = [part.usage.completion_tokens for part in parts]
    assert used == sorted(used)
    assert 1 <= used[0] < used[-1] == last.usage.completion_tokens == 2 * GREEDY["max_tokens"]
    assert {part.usage.prompt_tokens for part in chunks} == {last.usage.prompt_tokens}
    assert all(part.usage.total_tokens == part.usage.prompt_tokens + part.usage.completion_tokens for part in chunks)
    assert last.choices == []


def test_models_are_listed_and_found(client) -> None:
    listed = client.models.list().data
    assert [model.id for model in listed] == [NAME]
    assert client.models.retrieve(NAME) == listed[0]
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9' here"):
        client.models.retrieve("gpt-9")


def test_refusals_are_the_clients_own_kinds_of_error(client) -> None:
    chat = {"model": NAME, "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**chat, response_format={"type": "json_object"})
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**chat, stream=True, max_tokens=10**6)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.chat.completions.create(**{**chat, "model": "gpt-9"}, stream=True)


def test_a_failing_pass_is_an_error_event_in_a_stream_and_a_500_otherwise(client, llm, monkeypatch) -> None:
    fields = {**GREEDY, "prompt": "the cat"}
    passes, logits = [], llm.model.logits

    def failing(hidden):
        passes.append(1)
        if len(passes) % 4 == 0:
            raise RuntimeError("broken")
        return logits(hidden)

    with monkeypatch.context() as patch:
        patch.setattr(llm.model, "logits", failing)
        stream = client.completions.create(stream=True, **fields)
        assert next(stream).choices[0].finish_reason is None, "there was a beginning"
        with pytest.raises(openai.APIError, match="by no fault of the request"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="by no fault of the request"):
            client.completions.create(**fields)
    assert client.completions.create(**fields).choices[0].finish_reason == "length"


def test_many_async_clients_each_get_their_own_text(server, llm) -> None:
    expected = [llm.generate(text, SamplingParams(max_tokens=20, ignore_eos=True)).text for text in TEXTS]

    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(i: int) -> str:
                if i % 3 == 0:
                    return (await client.completions.create(prompt=TEXTS[i % 5], **GREEDY)).choices[0].text
                stream = await client.completions.create(prompt=TEXTS[i % 5], stream=True, **GREEDY)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one(i) for i in range(40)))

    assert asyncio.run(main()) == expected * 8
