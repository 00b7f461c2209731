"""Jinja for chat templates: programs that come with a model's weights, from whoever made them.

Jinja's own sandbox keeps a template away from attributes with underscores, from changing what it is given, and from
files. What is added here: the helpers that `transformers` gives to templates (utils/chat_template_utils.py), and
limits, for a template that loops for ever must not take the engine with it.

How the loops are counted: into the body of every loop and macro of a parsed template goes a filter that counts, by a
name that no template can spell.
"""

import json
import re
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

# A rendering may run the bodies of its loops this many times: a conversation of a thousand messages, each looked at in
# a loop over all of them, is just within it. A call of a macro takes as long as ten or more of them, and counts as ten.
MAX_STEPS = 1_100_000
_STEPS_OF_A_CALL = 10

# The longest text or list that one operator may make, and the largest exponent; and the longest integer, in bits.
MAX_LENGTH = 10_000_000
MAX_EXPONENT = 1_000
MAX_BITS = 100_000

_JOINED = "joined text"  # the name of another filter
_STEPS = "steps of this rendering"  # the name of a filter and of a variable, and with its spaces no name in Jinja


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment in which every chat template is compiled."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self.filters |= {"tojson": _tojson, _STEPS: _count_steps, _JOINED: _limited}
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        del self.globals["lipsum"]  # a filler text of any length, at once

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Jinja's hook between parsing and compiling."""
        template = super()._parse(source, name, filename)
        for kind, steps in ((nodes.For, 1), (nodes.Macro, _STEPS_OF_A_CALL), (nodes.CallBlock, _STEPS_OF_A_CALL)):
            for node in template.find_all(kind):
                node.body.insert(0, nodes.ExprStmt(nodes.Filter(nodes.Const(steps), _STEPS, [], [], None, None)))
        _LimitsOfJoining().visit(template)
        template.set_environment(self)
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Add, multiply, raise to a power or format, within the limits."""
        if operator == "**":
            if isinstance(right, int | float) and abs(right) > MAX_EXPONENT:
                raise SecurityError(f"it raises a number to a power above {MAX_EXPONENT:,}")
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() * right)
            return left**right
        if operator == "+":
            _check_length(sum(len(part) for part in (left, right) if isinstance(part, str | list | tuple)))
            return left + right
        if operator == "%":
            if isinstance(left, str):  # "%99d" makes a text of 99 characters, and "%*d" one of any length
                stars = right if "*" in left and isinstance(right, tuple) else ()
                widths = [*map(int, re.findall(r"\d{1,20}", left)), *(part for part in stars if isinstance(part, int))]
                _check_length(max(map(abs, widths), default=0))
            return left % right
        for repeated, times in ((left, right), (right, left)):
            repeats = isinstance(repeated, str | list | tuple) and isinstance(times, int)
            if repeats:
                _check_length(len(repeated) * times)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        return left * right


class _LimitsOfJoining(NodeTransformer):
    """Puts a filter behind every `~`, which is not among the operators that a sandbox intercepts."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the name is Jinja's
        return nodes.Filter(self.generic_visit(node), _JOINED, [], [], None, None)


def _limited(text: str) -> str:
    _check_length(len(text))
    return text


def _check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise SecurityError(f"it makes a text or list longer than {MAX_LENGTH:,}")


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise SecurityError(f"it makes an integer of more than {MAX_BITS:,} bits")


def limits_of_one_rendering() -> dict[str, list[int]]:
    """Return the variable by which one rendering is limited, to be given to the template with the others."""
    return {_STEPS: [MAX_STEPS]}


def variables_read(source: str) -> frozenset[str]:
    """Return the names of the variables that a template reads and does not set."""
    return frozenset(meta.find_undeclared_variables(Sandbox().parse(source)))


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it is its
    content.
    """

    tags = {"generation"}  # noqa: RUF012 - the attribute and its type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Dict:
    """`dict(...)` for templates: the function, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As dict.fromkeys."""
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)` for templates: no attribute of it begins with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it sets the attribute {name!r} of a namespace, which is not for templates")


@pass_context
def _count_steps(context: Context, steps: int) -> None:
    """Take `steps` from those that are left to this rendering; raise SecurityError where there are none left."""
    left = context.parent[_STEPS]
    left[0] -= steps
    if left[0] < 0:
        raise SecurityError(f"it takes more than {MAX_STEPS:,} steps")


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
