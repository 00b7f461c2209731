"""Chat templates: from a list of messages to the one text that the model was trained to continue.

A chat model's template is a Jinja program that comes with its weights: code from elsewhere. It runs in a
sandbox (see `template_sandbox.py`), and sees only plain data. Whatever goes wrong in it becomes one `InputError`.
Reference: `transformers`, utils/chat_template_utils.py.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2 import Template

from minillm.errors import InputError
from minillm.special_text import check_text
from minillm.template_sandbox import Sandbox, limits_of_one_rendering, variables_read


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
        _check_lists_of_mappings(variables)
        self._check_read(variables)
        given = {"tools": None, "documents": None, **special_tokens, **variables}
        given["messages"] = [_as_templates_see_it(message) for message in messages]
        given["add_generation_prompt"] = add_generation_prompt
        given |= limits_of_one_rendering()
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
            return Sandbox().from_string(self.source)
        except Exception as error:  # also what its constant parts raise, and a `break` outside of loops
            reason = str(error) or type(error).__name__
            raise InputError(f"the model's chat template is not valid Jinja: {reason}; use raw text") from error

    @cached_property
    def _variables_read(self) -> frozenset[str]:
        return variables_read(self.source)

    def _check_read(self, variables: Mapping[str, Any]) -> None:
        """Refuse a variable that the template never reads: the caller would believe that it did something."""
        self._compiled  # noqa: B018 - a template with a syntax error is reported as such, before anything is looked up
        for name, value in variables.items():
            if value is not None and name not in self._variables_read:
                raise InputError(f"the model's chat template does not use {name!r}; leave it out")


def _check_lists_of_mappings(variables: Mapping[str, Any]) -> None:
    """Refuse tools that are no JSON schemas, and documents that are no documents."""
    for name, wanted in (("tools", "JSON schemas"), ("documents", "documents with 'title' and 'text'")):
        given = variables.get(name)
        if given is not None and not (isinstance(given, list) and all(isinstance(one, dict) for one in given)):
            raise InputError(f"{name} must be a list of {wanted}, each a dict, not {given!r:.80}")


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
