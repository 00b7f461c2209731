"""The errors that a user can cause; command lines answer each with one sentence and exit code 2.

They are subclasses of the built-in errors that callers expect, so `except ValueError` works. Anything else that
escapes from minillm is a bug in minillm and keeps its traceback.
"""


class InputError(ValueError):
    """A value that cannot be used: the message is one sentence that names the value and the way out."""


class NumbersError(RuntimeError):
    """The model's arithmetic failed (NaN or infinity): its weights are damaged, or its dtype is too narrow."""

    @classmethod
    def of_logits(cls, found: str) -> "NumbersError":
        """The error of logits that "hold NaN", say: what was found, and what can be the reason."""
        return cls(
            f"the model's logits {found}: its weights are damaged, or its numbers outgrow the dtype "
            "(float16 ends at 65,504; bfloat16 and float32 reach 3e38)"
        )


class MissingError(FileNotFoundError):
    """A file, model or device that is not there: the message is one sentence that names it and the way out."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
