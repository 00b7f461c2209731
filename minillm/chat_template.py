"""Chat templates: from a list of messages to the one text that the model was trained to continue.

A chat model's template is a Jinja program that comes with its weights: code from elsewhere. It runs in
Jinja's sandbox, with the helpers that `transformers` (utils/chat_template_utils.py, the reference for this
file) gives it, and sees only plain data. Whatever goes wrong in it becomes one `InputError`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from minillm.errors import InputError
from minillm.special_text import check_text


class ChatTemplate:
    """One compiled template. `source` is compiled on first use: a model with a broken template can still
    be used raw.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        special_tokens: Mapping[str, Any],
        variables: Mapping[str, Any],
    ) -> str:
        """Render `messages`, which `check_messages` has accepted.

        Args:
            messages: the conversation, oldest first.
            add_generation_prompt: end with the opening of the assistant's answer.
            special_tokens: names such as "bos_token" and their texts, which templates write themselves.
            variables: everything else that the template may read ("tools", "enable_thinking", ...).

        Raises:
            InputError: the template raised, is not valid Jinja, or does not read one of `variables`.
        """
        self._check_read(variables)
        given = {"tools": None, "documents": None, **special_tokens, **variables}
        given["messages"] = [_as_templates_see_it(message) for message in messages]
        given["add_generation_prompt"] = add_generation_prompt
        given.setdefault("range", _range_with_budget(MAX_RANGE))
        try:
            return self._compiled.render(given)
        except Exception as error:
            # A template is a program: it can fail with any exception there is, and all of them are the
            # template's word on these messages, not faults of minillm.
            reason = str(error) or type(error).__name__
            raise InputError(f"the chat template refused these messages: {reason}") from error

    @cached_property
    def _compiled(self) -> Template:
        try:
            return _environment().from_string(self.source)
        except (TemplateError, RecursionError) as error:
            raise InputError(f"the model's chat template is not valid Jinja: {error}; use raw text") from error

    @cached_property
    def _variables_read(self) -> frozenset[str]:
        return frozenset(meta.find_undeclared_variables(_environment().parse(self.source)))

    def _check_read(self, variables: Mapping[str, Any]) -> None:
        """Refuse a variable that the template never reads: the caller would believe that it did something."""
        self._compiled  # noqa: B018 - a template with a syntax error is reported as such, before anything is looked up
        for name, value in variables.items():
            if value is not None and name not in self._variables_read:
                raise InputError(f"the model's chat template does not use {name!r}; leave it out")


def check_messages(messages: Any) -> None:
    """Refuse what is not a conversation.

    A message is a mapping with "role" and "content"; the content may be absent where "tool_calls" stand in
    its place.

    Raises:
        InputError: naming the message and what it lacks.
    """
    if not isinstance(messages, list | tuple):
        raise InputError(f"messages must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise InputError("messages is empty; give at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InputError(f"messages[{index}] is {message!r:.80}; a message is a mapping with 'role' and 'content'")
        for key in ("role", "content"):
            if key not in message and not (key == "content" and message.get("tool_calls")):
                raise InputError(f"messages[{index}] has no {key!r}; a message has 'role' and 'content'")


def plain_data(value: Any, where: str) -> Any:
    """Copy `value` into plain strings, numbers, lists and dicts, so that a template meets no object with
    methods of its own.

    Raises:
        InputError: for anything that JSON could not hold, or text that UTF-8 could not; `where` names it.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        check_text(value, where)
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {plain_data(key, where): plain_data(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, where) for item in value]
    raise InputError(f"{where} holds a {type(value).__name__}; chat templates take text, numbers, lists and dicts")


def _as_templates_see_it(message: Mapping[str, Any]) -> dict[str, Any]:
    """Drop keys whose value is None, and give reasoning under each of its names, as `transformers` does."""
    seen = {key: value for key, value in message.items() if value is not None}
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((seen[name] for name in names if name in seen), None)
    return seen if reasoning is None else {"thinking": reasoning, **seen, "reasoning_content": reasoning}


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it is its
    content.
    """

    tags = {"generation"}  # noqa: RUF012 - the attribute and its type are Jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models read it: Jinja's own filter would write "<" as an escape, for HTML's sake."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _range_with_budget(budget: int) -> Callable[..., range]:
    """Jinja's sandbox limits each `range`; this limits their sum in one rendering, so that nested loops
    end too.
    """
    left = budget

    def limited(*args: int) -> range:
        nonlocal left
        numbers = range(*args)
        left -= len(numbers[: left + 1])
        if left < 0:
            raise OverflowError(f"its loops run over more than {budget} numbers")
        return numbers

    return limited
