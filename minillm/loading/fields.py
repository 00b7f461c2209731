"""Typed reading of a model's description: each value is checked, and one that nobody took is found out."""

import struct
from collections.abc import Iterable, Mapping
from typing import Any

from minillm.errors import InputError

_REQUIRED = object()


class Fields:
    """A mapping read field by field; every reader raises InputError that names the field and its value.

    A field that is absent or null has the default; without a default it is required.
    """

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where
        self.taken: set[str] = set()

    def _take(self, name: str, default: Any) -> Any:
        self.taken.add(name)
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise InputError(f"{self.where} does not state {name!r}, which a Llama model needs")
        return default

    def _refuse(self, name: str, value: Any, wanted: str) -> InputError:
        return InputError(f"{self.where}: {name} must be {wanted}, got {shown(value)}")

    def integer(self, name: str, default: Any = _REQUIRED) -> Any:
        """A positive integer of at most 31 bits (or the default as it stands)."""
        value = self._take(name, default)
        if value is default:
            return value
        if not is_integer(value) or not 0 < value < 2**31:
            raise self._refuse(name, value, "a positive integer")
        return value

    def whole_number(self, name: str, default: int) -> int:
        """As `integer`, and 0."""
        value = self._take(name, default)
        if not is_integer(value) or not 0 <= value < 2**31:
            raise self._refuse(name, value, "a whole number")
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> Any:
        """A positive finite number, as a float (or the default as it stands)."""
        value = self._take(name, default)
        if value is default:
            return value
        # The upper bound is below the largest float32; it also keeps out infinity, and the comparison NaN.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e38:
            raise self._refuse(name, value, "a positive number")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive finite numbers; required, and not empty."""
        entries = self.entries(name)
        one_by_one = Fields({str(index): value for index, value in enumerate(entries)}, f"{self.where}: {name}")
        return tuple(one_by_one.number(index) for index in one_by_one.values)

    def entries(self, name: str, default: Any = _REQUIRED) -> list[Any]:
        """A list that is not empty (or the default as it stands)."""
        value = self._take(name, default)
        if value is not default and (not isinstance(value, list) or not value):
            raise self._refuse(name, value, "a list")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._refuse(name, value, "true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self._take(name, default)
        if value is not default and not isinstance(value, str):
            raise self._refuse(name, value, "a string")
        return value

    def table(self, name: str) -> dict[str, Any] | None:
        value = self._take(name, None)
        if value is not None and not isinstance(value, dict):
            raise self._refuse(name, value, "an object")
        return value

    def token_id(self, name: str) -> int | None:
        ids = self.token_ids(name)
        if len(ids) > 1:
            raise self._refuse(name, list(ids), "one token id")
        return ids[0] if ids else None

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One id or a list of ids; none where the field is absent or null."""
        value = self._take(name, None)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(is_integer(token_id) and token_id >= 0 for token_id in ids):
            raise self._refuse(name, value, "a token id or a list of them")
        return tuple(ids)

    def require_neutral(self, table: Mapping[str, tuple[Any, ...]]) -> None:
        """Fields that this engine does not implement may be there, if their value asks for nothing."""
        for name, neutral in table.items():
            value = self._take(name, None)
            if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
                wanted = f" (only {', '.join(shown(n) for n in neutral)} is)" if neutral else ""
                raise InputError(f"{self.where}: {name} = {shown(value)} is not supported{wanted}")

    def refuse_rest(self, ignored: Iterable[str] = ()) -> None:
        """Raise for the first field that was neither taken nor is known to be of no consequence."""
        for name in sorted(map(str, set(self.values) - self.taken - set(ignored))):
            if self.values.get(name) is not None:
                raise InputError(f"{self.where}: the field {name} = {shown(self.values.get(name))} is not understood")


def is_integer(value: Any) -> bool:
    """Whether it is an integer; true and false are not, though Python counts them so."""
    return isinstance(value, int) and not isinstance(value, bool)


def decimal(value: float) -> float:
    """The decimal number that was meant: 1e-5, where a float32 holds 9.999999747378752e-06."""
    short = float(f"{value:.7g}")  # a float32 keeps 7 digits
    return short if struct.pack("<f", short) == struct.pack("<f", value) else value


def shown(value: Any) -> str:
    """A value as an error message shows it: short, whatever it is."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
