"""The shapes of OpenAI's API: what is refused by its name, what a request becomes, what an answer looks like."""

import contextlib
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from small_tokenizers import sentencepiece_backend, small_tokenizer
from tiny import CHAT_TEMPLATE, tiny_config

from minillm.generation import Completion, TokenLogprob
from minillm.metrics import request_metrics
from minillm.sampling_params import SamplingParams
from minillm.server.answers import Envelope, answer, failure
from minillm.server.errors import MAX_FIELDS, RequestError, parse_json, parse_request
from minillm.server.prepare import Prepared, Served, prepare
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest
from minillm.tokenizer import Tokenizer

TOOL_TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT_TEMPLATE
CALL_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['name'] }}:{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function']['arguments']['town'] }}{% endfor %}{{ m['tool_call_id'] }}|"
    "{% endfor %}"
)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
TEXT = {"model": "tiny", "prompt": "hello"}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}


def served(template: str | None = CHAT_TEMPLATE, max_length: int = 96) -> Served:
    tokenizer = small_tokenizer(template)
    return Served("tiny", tokenizer, tiny_config(vocab_size=tokenizer.vocab_size, eos_token_ids=(2,)), max_length)


def chat(**changes) -> Prepared:
    return prepare(parse_request(ChatCompletionRequest, {**CHAT, **changes}), served())


def text(**changes) -> Prepared:
    return prepare(parse_request(CompletionRequest, {**TEXT, **changes}), served())


def refusal(of, **changes) -> dict:
    """The error's detail, whose message is one sentence."""
    with pytest.raises(RequestError) as caught:
        of(**changes)
    assert caught.value.status == 400
    detail = caught.value.body()["error"]
    assert set(detail) == {"message", "type", "param", "code"}
    assert detail["type"] == "invalid_request_error"
    assert "\n" not in detail["message"]
    return detail


# What is refused, and what is not.

UNSUPPORTED = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": {"name": "search"},
    "functions": [],
    "modalities": ["text", "audio"],
    "moderation": {},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "x"}},
    "service_tier": "flex",
    "store": True,
    "tool_choice": "required",
    "verbosity": "low",
    "web_search_options": {},
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_parameter_that_is_not_implemented_is_refused_by_its_name(name):
    detail = refusal(chat, **{name: UNSUPPORTED[name]})
    assert (detail["param"], detail["code"]) == (name, "unsupported_parameter")
    assert detail["message"].startswith(f"{name} is not implemented here: leave it out")


def test_values_that_ask_for_nothing_are_accepted():
    neutral = {
        "response_format": {"type": "text"},
        "store": False,
        "modalities": ["text"],
        "parallel_tool_calls": True,
        "tool_choice": "none",
        "function_call": "none",
        "service_tier": "auto",
        "verbosity": "medium",
        "prompt_cache_retention": "in_memory",
        "user": "u1",
        "metadata": {"a": "b"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "stream": False,
    }
    assert chat(**neutral) == chat()
    nulls = dict.fromkeys(set(ChatCompletionRequest.model_fields) - {"model", "messages"})
    assert chat(**nulls) == chat()
    nulls = dict.fromkeys(set(CompletionRequest.model_fields) - {"model", "prompt"})
    assert text(**nulls) == text(best_of=1, user="u") == text()


def test_all_parameters_of_openai_s_reference_are_known():
    both = "model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options"
    both += " temperature top_p user"
    for_chat = "messages max_completion_tokens top_logprobs tools metadata safety_identifier prompt_cache_key"
    for_text = "prompt best_of echo suffix"
    assert set((both + " " + for_chat).split()) | set(UNSUPPORTED) <= set(ChatCompletionRequest.model_fields)
    assert set((both + " " + for_text).split()) <= set(CompletionRequest.model_fields)
    assert {name for name, field in ChatCompletionRequest.model_fields.items() if field.json_schema_extra} == set(
        UNSUPPORTED
    )


def test_every_field_says_what_it_must_be():
    for kind in (ChatCompletionRequest, CompletionRequest):
        assert [name for name, field in kind.model_fields.items() if not field.description] == []


WRONG_IN_BOTH = [
    ("temperature", "1", "temperature is '1', but it must be a number from 0"),
    ("temperature", 2.5, "temperature is 2.5"),
    ("temperature", math.inf, "temperature is inf"),
    ("temperature", True, "temperature is True"),
    ("top_p", 1.01, "top_p is 1.01"),
    ("n", 0, "n is 0, but it must be a whole number from 1 to 128"),
    ("n", 129, "n is 129"),
    ("n", 1.0, "n is 1.0"),
    ("stop", ["a", "b", "c", "d", "e"], "a string or a list of up to 4 of them"),
    ("stop", "", "none of them empty"),
    ("stop", ["a", ""], "none of them empty"),
    ("seed", 2**63, "a signed 64-bit integer"),
    ("presence_penalty", -2.1, "a number from -2 to 2"),
    ("frequency_penalty", 10**400, "a number from -2 to 2"),
    ("logit_bias", {"the": 1}, "an object of token ids"),
    ("logit_bias", {"1": 101}, "biases from -100 to 100"),
    ("logit_bias", {"9999": 1}, "logit_bias names token 9999"),
    ("logit_bias", {"7": 1, "07": 2}, "logit_bias names a token twice"),
    ("stop_token_ids", [9999], "stop_token_ids names token 9999"),
    ("stop_token_ids", [-1], "a list of token ids"),
    ("max_tokens", 0, "max_tokens is 0, but it must be a whole number of at least 1"),
    ("top_k", -2, "0 or -1 keep all tokens"),
    ("min_p", 2, "min_p is 2"),
    ("repetition_penalty", 0, "a number above 0"),
    ("stream", "yes", "true or false"),
    ("stream_options", {"include_usage": True}, "stream_options are for streams"),
    ("user", 7, "user is 7"),
]


@pytest.mark.parametrize(("name", "value", "told"), WRONG_IN_BOTH)
def test_a_wrong_value_is_named_with_what_it_must_be(name, value, told):
    for of in (chat, text):
        detail = refusal(of, **{name: value})
        assert told in detail["message"]
        assert (detail["param"], detail["code"]) in {(name, "invalid_value"), ("stream_options", None)}


@pytest.mark.parametrize(
    ("changes", "param", "told"),
    [
        ({"messages": []}, "messages", "a list of at least one message"),
        ({"messages": "hello"}, "messages", "a list of at least one message"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        ({"messages": [{"role": "bard", "content": "x"}]}, "messages[0]", "'system', 'developer', 'user'"),
        ({"messages": [{"content": "x"}]}, "messages[0]", "discriminator 'role'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "is 3: "),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[0].weight", "is no parameter"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
            "messages[0].content[1].type",
            "is 'image_url': input should be 'text'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "text": "x"}]}]},
            "messages[0].content[0].type",
            "is 'input_audio': input should be 'text'",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "1"}}]},
            "messages[0].audio",
            "leave it out",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "lone surrogate"),
        ({"messages": [{"role": "assistant"}]}, "messages", "has no 'content'"),
        ({"top_logprobs": 2}, "top_logprobs", "let logprobs be true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"logprobs": 3}, "logprobs", "true or false"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "they differ"),
        ({"tools": [SEARCH]}, "messages", "the model's chat template does not use 'tools'"),
        ({"tools": [SEARCH], "tool_choice": "none"}, "tool_choice", "leave out the tools"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "input should be 'function'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "leave it out"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self", "leave it out"),
        ({"chat_template_kwargs": {"thinking": 1}}, "messages", "does not use 'thinking'"),
        ({"min_tokens": 1}, "min_tokens", "is no parameter that is known here"),
        ({"prompt": "x"}, "prompt", "is no parameter that is known here"),
    ],
)
def test_what_is_wrong_with_a_chat_is_said_where_it_is(changes, param, told):
    detail = refusal(chat, **changes)
    assert told in detail["message"]
    assert detail["param"] == param


@pytest.mark.parametrize(
    ("changes", "param", "told"),
    [
        ({"prompt": ""}, "prompt", "the prompt is empty"),
        ({"prompt": []}, "prompt", "a string, a list of token ids, or a list of up to 2048 of either"),
        ({"prompt": ["a", 1]}, "prompt", "a list of token ids"),
        ({"prompt": [[1], []]}, "prompt", "a list of token ids"),
        ({"prompt": [True]}, "prompt", "a list of token ids"),
        ({"prompt": None}, "prompt", "prompt is None"),
        ({"prompt": [1, 9999]}, "prompt", "token id 9999 is outside the vocabulary"),
        ({"prompt": ["a"] * 2049}, "prompt", "up to 2048"),
        ({"prompt": ["a"] * 100, "n": 21}, "n", "100 prompts with 21 choices each"),
        ({"logprobs": 6}, "logprobs", "from 0 to 5"),
        ({"logprobs": True}, "logprobs", "from 0 to 5"),
        ({"best_of": 3, "n": 2}, "best_of", "may be null or 2"),
        ({"suffix": "x"}, "suffix", "is not implemented here"),
        ({"messages": []}, "messages", "is no parameter that is known here"),
        ({"prompt": "\ud800"}, "prompt", "lone surrogate"),
    ],
)
def test_what_is_wrong_with_a_completion_is_said_where_it_is(changes, param, told):
    detail = refusal(text, **changes)
    assert told in detail["message"]
    assert detail["param"] == param


def test_a_body_that_is_no_object_or_lacks_a_field_is_refused():
    for body in ([], None, "x", 3):
        with pytest.raises(RequestError, match="the body must be a JSON object"):
            parse_request(ChatCompletionRequest, body)
    for kind, lacking in ((ChatCompletionRequest, "messages"), (CompletionRequest, "prompt")):
        with pytest.raises(RequestError) as caught:
            parse_request(kind, {"model": "tiny"})
        assert (caught.value.param, caught.value.code) == (lacking, "missing_required_parameter")


@pytest.mark.parametrize("data", [b"{", b"\xff", b"NaN", b'{"a": -Infinity}', b"[" * 100_000, b"1" * 5000, b""])
def test_what_is_no_json_is_refused(data):
    with pytest.raises(RequestError) as caught:
        parse_json(data)
    assert caught.value.status == 400


def test_another_model_is_not_found():
    with pytest.raises(RequestError) as caught:
        chat(model="gpt-4o")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    assert str(caught.value) == "there is no model 'gpt-4o' here: 'tiny' is served"


def test_a_request_that_broke_off_is_the_client_s_fault_or_the_server_s():
    assert failure("no token left", own_fault=True).status == 400
    broken = failure("the pass failed", own_fault=False)
    assert (broken.status, broken.body()["error"]["type"]) == (500, "server_error")


# What a request becomes.


def test_openai_s_defaults_hold_where_a_body_is_silent():
    ((params,),) = chat().params
    length = len(chat().prompts[0])
    assert params == SamplingParams(temperature=1.0, max_tokens=96 - length)
    ((params,),) = text().params
    assert params == SamplingParams(temperature=1.0, max_tokens=16)


def test_every_sampling_field_arrives():
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5, "seed": -3}
    given |= {"presence_penalty": 1, "frequency_penalty": -1, "stop": ["a", "b"], "stop_token_ids": [3]}
    given |= {"ignore_eos": True, "max_tokens": 5}
    for prepared in (chat(**given), text(**given)):
        assert prepared.params == ((SamplingParams(**given),),)
    assert text(logit_bias={"7": -100, "8": 0.5}).params[0][0].logit_bias == {7: -100.0, 8: 0.5}
    assert text(logprobs=2).params[0][0].logprobs == 2
    assert chat(logprobs=True).params[0][0].logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).params[0][0].logprobs == 3
    assert chat(logprobs=False).params[0][0].logprobs is None
    assert chat(max_completion_tokens=4, max_tokens=4).params[0][0].max_tokens == 4


def test_openai_s_and_vllm_s_ways_to_ask_for_the_ends_of_a_range():
    assert text(top_p=0).params[0][0].top_p == pytest.approx(0, abs=1e-5)
    assert text(top_k=-1).params[0][0].top_k == 0
    assert text(temperature=0).params[0][0].temperature == 0.0


def test_choices_draw_by_seeds_of_their_own():
    prepared = text(prompt=["he", "hello"], n=3, seed=2**63 - 2)
    assert [one.seed for one in prepared.params[0]] == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert [ids for ids, _ in prepared.requests] == [prepared.prompts[0]] * 3 + [prepared.prompts[1]] * 3
    assert [one.seed for one in text(n=2).params[0]] == [None, None]


def test_a_prompt_comes_in_four_forms():
    tokenizer = served().tokenizer
    one, other = tuple(tokenizer.encode("hello")), tuple(tokenizer.encode("hi"))
    assert text(prompt="hello").prompts == (one,)
    assert text(prompt=["hello", "hi"]).prompts == (one, other)
    assert text(prompt=list(one)).prompts == (one,)
    assert text(prompt=[list(one), list(other)]).prompts == (one, other)


def test_an_echo_is_the_prompt_s_text():
    assert text(prompt=["hello", "<s>"], echo=True).echoes == ("hello", "<s>")
    assert text(prompt=served().tokenizer.encode("héllo"), echo=True).echoes == ("héllo",)
    assert text().echoes == ("",)


def test_there_is_room_for_what_the_context_holds_and_no_more():
    ids = [9] * 90
    assert text(prompt=ids, max_tokens=6).params[0][0].max_tokens == 6
    assert text(prompt=ids).params[0][0].max_tokens == 6, "the default is what there is room for"
    detail = refusal(text, prompt=ids, max_tokens=7)
    assert (detail["code"], detail["param"]) == ("context_length_exceeded", "max_tokens")
    assert "the prompt has 90, so max_tokens may be 6, and is 7" in detail["message"]
    detail = refusal(text, prompt=[9] * 96)
    assert (detail["code"], detail["param"]) == ("context_length_exceeded", "prompt")
    detail = refusal(chat, messages=[{"role": "user", "content": "long" * 50}])
    assert (detail["code"], detail["param"]) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CompletionRequest, {"prompt": [""] * 50_000}),
        (CompletionRequest, {"prompt": [1] * 50_000 + ["a"] * 50_000}),
        (CompletionRequest, {"prompt": [["a"] * 1000] * 1000}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": [""] * 50_000}),
        (ChatCompletionRequest, {"messages": [{"role": "nobody"}] * 50_000}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [{}] * 50_000}]}),
        (ChatCompletionRequest, {**CHAT, "tools": [{}] * 50_000}),
    ],
)
def test_of_many_wrong_elements_few_are_looked_at(kind, fields):
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"model": "tiny", **fields})
    assert caught.value.error_count() < 20


def test_an_object_with_too_many_fields_is_refused_before_they_are_looked_at():
    most = {str(i): 1 for i in range(MAX_FIELDS)}
    assert parse_json(json.dumps(most).encode()) == most
    for body in ({**most, "x": 1}, {"logit_bias": {**most, "x": 1}}, {"messages": [{**most, "x": 1}]}):
        with pytest.raises(RequestError, match="an object of the JSON has 16,385 fields, and may have 16,384"):
            parse_json(json.dumps(body).encode())


def test_continuous_usage_is_refused_without_usage():
    detail = refusal(chat, stream=True, stream_options={"continuous_usage_stats": True})
    assert detail["param"] == "stream_options.continuous_usage_stats"
    assert chat(stream=True, stream_options={"continuous_usage_stats": False}).prompts


def test_what_cannot_fit_is_refused_before_it_is_made_into_tokens(monkeypatch):
    most = served().tokenizer.characters_per_token * 96
    monkeypatch.setattr("minillm.server.prepare.LONG_CHARACTERS", 10)
    detail = refusal(text, prompt="x" * most)
    assert f"has {most:,}" in detail["message"], "this one was made into tokens, and counted"

    def never(self, *args, **kwargs):
        raise AssertionError("it was made into tokens")

    monkeypatch.setattr(Tokenizer, "encode", never)
    monkeypatch.setattr(Tokenizer, "encode_chat", never)
    detail = refusal(text, prompt=["a", "x" * (most + 1)])
    assert (detail["code"], detail["param"]) == ("context_length_exceeded", "prompt")
    assert f"{most + 1:,} characters" in detail["message"]
    detail = refusal(chat, messages=[{"role": "user", "content": "x" * (most + 1)}])
    assert (detail["code"], detail["param"]) == ("context_length_exceeded", "messages")


def test_no_token_stands_for_more_characters_than_the_longest():
    tokenizer = served().tokenizer
    for sample in ("hello hello", "x" * 500, "\u00e9" * 50, "\U0001f600" * 20, " " * 300, "\n" * 40):
        assert len(sample) <= tokenizer.characters_per_token * len(tokenizer.encode(sample))


def test_messages_become_what_templates_know():
    tokenizer = small_tokenizer(CALL_TEMPLATE)
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Oslo"}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "cold", "tool_call_id": "c1"},
    ]
    request = parse_request(ChatCompletionRequest, {**CHAT, "messages": messages})
    (ids,) = prepare(request, Served("tiny", tokenizer, tiny_config(vocab_size=300), 200)).prompts
    assert tokenizer.decode(ids) == "system::be brief|user:ann:one\ntwo|assistant::Oslo|tool::coldc1|"


def test_arguments_of_a_call_that_are_no_object_are_refused():
    for arguments in ("[1]", "{", "3"):
        call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        detail = refusal(chat, messages=[{"role": "assistant", "tool_calls": [call]}])
        assert detail["param"] == "messages[0].tool_calls[0].function.arguments"


def test_tools_and_further_variables_go_to_the_template():
    def told(template: str, **changes) -> str:
        here = served(template, max_length=1000)
        (ids,) = prepare(parse_request(ChatCompletionRequest, {**CHAT, **changes}), here).prompts
        return here.tokenizer.decode(ids, skip_special_tokens=False)

    assert json.loads(told(TOOL_TEMPLATE, tools=[SEARCH]).split("<s>")[-1].split("<|im_start|>")[0]) == [SEARCH]
    assert told(TOOL_TEMPLATE, tools=[]) == told(TOOL_TEMPLATE)
    thinking = "{{ enable_thinking }}" + CHAT_TEMPLATE
    assert "False" in told(thinking, chat_template_kwargs={"enable_thinking": False})


def test_a_model_without_a_chat_template_refuses_chats():
    with pytest.raises(RequestError, match="no chat template"):
        prepare(parse_request(ChatCompletionRequest, CHAT), served(template=None))


# What an answer looks like.


def generated(tokenizer: Tokenizer, ids, *, text=None, reason="length", top=(), prompt=(9, 10), cached=0) -> Completion:
    """A completion of these ids, the i-th of log-probability -i."""
    logprobs = tuple(TokenLogprob(one, -float(i), tuple(top)) for i, one in enumerate(ids))
    metrics = request_metrics(
        prompt_tokens=len(prompt), cached_tokens=cached, token_times_s=[1.0] * len(ids), prefill_s=1.0, kv_bytes=0
    )
    shown = tokenizer.decode(ids) if text is None else text
    return Completion(shown, tuple(ids), reason, tuple(prompt), logprobs, metrics)


def answered(request: dict, *completions: Completion) -> dict:
    kind = ChatCompletionRequest if "messages" in request else CompletionRequest
    here, parsed = served(), parse_request(kind, request)
    return answer(parsed, prepare(parsed, here), completions, here, Envelope("abc", 1700000000, "fp_1")).model_dump()


def test_a_chat_s_answer_in_full():
    tokenizer = served().tokenizer
    ids = tokenizer.encode("hello é")
    request = {**CHAT, "logprobs": True, "top_logprobs": 1}
    length = len(prepare(parse_request(ChatCompletionRequest, request), served()).prompts[0])
    body = answered(request, generated(tokenizer, ids[:2], top=[(ids[0], -0.0)], prompt=[9] * length, cached=4))
    token, space = tokenizer.decode(ids[:1]), tokenizer.decode(ids[1:2])
    top = [{"token": token, "logprob": 0.0, "bytes": list(token.encode())}]
    assert body == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": token + space, "refusal": None},
                "logprobs": {
                    "content": [
                        {"token": token, "logprob": 0.0, "bytes": list(token.encode()), "top_logprobs": top},
                        {"token": space, "logprob": -1.0, "bytes": list(space.encode()), "top_logprobs": top},
                    ],
                    "refusal": None,
                },
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": length,
            "completion_tokens": 2,
            "total_tokens": length + 2,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        "system_fingerprint": "fp_1",
    }


def test_a_completion_s_answer_in_full():
    tokenizer = served().tokenizer
    ids = tokenizer.encode("hello hello")
    top = [(ids[1], -0.25), (ids[0], -2.0)]
    body = answered({**TEXT, "logprobs": 2}, generated(tokenizer, ids, top=top, reason="stop"))
    assert body["id"] == "cmpl-abc"
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": "hello hello",
            "logprobs": {
                "tokens": ["hello", " hello"],
                "token_logprobs": [0.0, -1.0],
                "top_logprobs": [{" hello": -0.25, "hello": -2.0}] * 2,
                "text_offset": [0, 5],
            },
            "finish_reason": "stop",
        }
    ]


def test_choices_of_several_prompts_are_numbered_through_and_prompts_count_once():
    tokenizer = served().tokenizer
    made = [generated(tokenizer, tokenizer.encode(one), prompt=[9, 10, 11], cached=9) for one in ("a", "b", "c", "d")]
    body = answered({**TEXT, "prompt": [[9, 10, 11], [9, 10, 12]], "n": 2, "echo": True, "seed": 1}, *made)
    echoed = [tokenizer.decode(ids) for ids in ([9, 10, 11], [9, 10, 12]) for _ in range(2)]
    assert [one["index"] for one in body["choices"]] == [0, 1, 2, 3]
    assert [one["text"] for one in body["choices"]] == [e + t for e, t in zip(echoed, "abcd", strict=True)]
    assert body["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 6},
    }


def tokens_of(choice: dict) -> list[str]:
    return choice["logprobs"]["tokens"]


def test_logprobs_are_of_the_tokens_in_the_text():
    """Neither the end-of-sequence token nor a stop string is in the text; a special token in its midst is passed over
    by the text, and was chosen all the same.
    """
    tokenizer = served().tokenizer
    hello, end = tokenizer.encode("hello"), 2
    ended = generated(tokenizer, [*hello, end], text="hello", reason="stop")
    assert tokens_of(answered({**TEXT, "logprobs": 0}, ended)["choices"][0]) == ["hello"]
    stopped = generated(tokenizer, tokenizer.encode("hello hello<he"), text="hello ", reason="stop")
    (choice,) = answered({**TEXT, "logprobs": 0, "stop": "hello<"}, stopped)["choices"]
    assert tokens_of(choice) == ["hello", " hello"], "the second one begins in the text"
    through = generated(tokenizer, [*hello, end, *hello], text="hellohello")
    (choice,) = answered({**TEXT, "logprobs": 0, "ignore_eos": True}, through)["choices"]
    assert tokens_of(choice) == ["hello", "<|im_end|>", "hello"]
    assert choice["logprobs"]["text_offset"] == [0, 5, 5]


def test_only_the_token_that_ended_a_request_is_left_out_with_its_end():
    tokenizer = served().tokenizer
    half, end = tokenizer.encode("🙂")[:1], 2
    broken_off = generated(tokenizer, [*half, end], text="\ufffd", reason="stop")
    assert tokens_of(answered({**TEXT, "logprobs": 0}, broken_off)["choices"][0]) == ["\ufffd"]
    special = generated(tokenizer, [3, end], text="", reason="stop")
    assert tokens_of(answered({**TEXT, "logprobs": 0}, special)["choices"][0]) == ["<s>"]
    asked_for = generated(tokenizer, [*tokenizer.encode("hello"), 9], text="hello", reason="stop")
    (choice,) = answered({**TEXT, "logprobs": 0, "stop_token_ids": [9]}, asked_for)["choices"]
    assert tokens_of(choice) == ["hello"]


def test_bytes_join_to_the_text_where_a_character_spans_tokens():
    tokenizer = served().tokenizer
    request = {**CHAT, "logprobs": True}
    (choice,) = answered(request, generated(tokenizer, tokenizer.encode("🙂")))["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) > 1
    assert bytes(byte for one in content for byte in one["bytes"]).decode() == choice["message"]["content"] == "🙂"
    assert {one["token"] for one in content} == {"\ufffd"}


def test_what_json_cannot_hold_is_openai_s_number_for_it():
    tokenizer = served().tokenizer
    body = answered({**TEXT, "logprobs": 1}, generated(tokenizer, tokenizer.encode("a"), top=[(5, -math.inf)]))
    assert -9999.0 in body["choices"][0]["logprobs"]["top_logprobs"][0].values()
    json.dumps(body, allow_nan=False)


# Any body at all.

WORDS = st.sampled_from(["tiny", "user", "assistant", "tool", "system", "text", "function", "role", "content", "type"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": WORDS},
        optional={"content": VALUES, "name": VALUES, "tool_calls": VALUES, "tool_call_id": VALUES},
    ),
    max_size=3,
)


def becomes_a_request_or_a_400(kind, body, here) -> None:
    """Nothing but a RequestError may come out of a body, whatever is in it."""
    error = None
    try:
        prepared = prepare(parse_request(kind, body), here)
        assert all(ids and len(ids) + params.max_tokens <= 96 for ids, params in prepared.requests)
    except RequestError as raised:
        error = raised
    if error is not None:
        assert error.status in (400, 404)
        assert error.body()["error"]["message"]
        json.dumps(error.body())


HERE = served(TOOL_TEMPLATE)
SENTENCEPIECE = Tokenizer(sentencepiece_backend(), {"eos_token": "</s>"}, {"default": CHAT_TEMPLATE})


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(ChatCompletionRequest.model_fields)), VALUES, max_size=4), MESSAGES)
def test_any_chat_becomes_a_request_or_a_400(changes, messages):
    becomes_a_request_or_a_400(ChatCompletionRequest, {**CHAT, "messages": messages, **changes}, HERE)
    becomes_a_request_or_a_400(ChatCompletionRequest, {**CHAT, **changes}, HERE)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(CompletionRequest.model_fields)), VALUES, max_size=4), st.booleans())
def test_any_completion_becomes_a_request_or_a_400(changes, other):
    here = Served("tiny", SENTENCEPIECE, tiny_config(vocab_size=SENTENCEPIECE.vocab_size), 96) if other else HERE
    becomes_a_request_or_a_400(CompletionRequest, {**TEXT, **changes}, here)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_json_or_a_400(data):
    with contextlib.suppress(RequestError):
        assert parse_request(CompletionRequest, parse_json(data)).prompt
