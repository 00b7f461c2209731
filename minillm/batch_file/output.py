"""The output: a line for each order, in whatever order they come to their ends; and what a run needs to go on with it.

A line is written in one piece, as soon as its order has ended, so a run that is killed leaves whole lines and at most
one that broke off. The next run drops that one, and does only what has no line yet. Whose line it is says its `id`,
which is made of the input's own line: a file of another input is recognized, and left alone. The file is locked while
a run works on it; the system drops the lock with the process.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from minillm.errors import InputError
from minillm.loading.scratch import try_lock

_BEGINNING = b'{"id": "batch_req_'
"""How every line begins: a tail that begins otherwise is not ours to drop."""


@dataclass
class Answered:
    """What an output file has already. ids: of the lines. failed: how many of them are errors. fingerprints: of the
    settings that the others were made with.
    """

    ids: set[str] = field(default_factory=set)
    failed: int = 0
    fingerprints: set[str] = field(default_factory=set)


class OutputFile:
    """An output file, open for one run: `with OutputFile(path) as output: output.recover(...); output.append(...)`.

    Raises InputError where the file cannot be written, or another run is at work on it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file():
            raise InputError(f"the answers cannot be written to {str(path)!r}: it is no ordinary file")
        try:
            self._file: IO[bytes] = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise InputError(f"the answers cannot be written to {str(path)!r}: {error.strerror}") from None
        if not try_lock(self._file):
            self._file.close()
            raise InputError(f"another run is writing to {str(path)!r}: wait for it, or name another file")

    def __enter__(self) -> "OutputFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def recover(self, ids: Mapping[str, str | None], model: str) -> Answered:
        """What an earlier run answered, after which the file is ready for the rest.

        ids: of the input's lines, with their custom_ids. model: the name that is served. Raises InputError, and leaves
        the file as it is, where it holds anything but answers of this model to this input.
        """
        found = Answered()
        size = self._file.seek(0, os.SEEK_END)
        whole = 0  # bytes of whole lines
        self._file.seek(0)
        with open(self._file.fileno(), "rb", closefd=False) as reader:
            for line in reader:
                if line.endswith(b"\n"):
                    self._take(line, ids, model, found)
                    whole += len(line)
                elif _is_record(line):  # only its end is missing
                    self._take(line, ids, model, found)
                    whole = size
                    self._write(b"\n")
                elif not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                    raise self._foreign("a last line that is no answer")
        if whole < size:
            self._file.truncate(whole)
        return found

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a line, whole. What is not ASCII is escaped, so that no reader takes a character for a line's end."""
        self._write(json.dumps(record, ensure_ascii=True, allow_nan=False).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _take(self, line: bytes, ids: Mapping[str, str | None], model: str, found: Answered) -> None:
        """Count a line in, if it is the answer to one of the input's."""
        if not _is_record(line):
            raise self._foreign("a line that is no answer")
        record = json.loads(line)
        order_id, body = record["id"], record["response"]["body"]
        if order_id not in ids or record.get("custom_id") != ids[order_id] or order_id in found.ids:
            raise self._foreign(f"an answer for custom_id {record.get('custom_id')!r:.80}, which is not of this input")
        if record["response"]["status_code"] != 200:
            found.failed += 1
        elif body.get("model") != model:
            raise self._foreign(f"answers of the model {body.get('model')!r:.80}, and this is {model!r}")
        else:
            found.fingerprints.add(str(body.get("system_fingerprint")))
        found.ids.add(order_id)

    def _foreign(self, what: str) -> InputError:
        return InputError(f"{str(self.path)!r} holds {what}: name another file for the answers, or remove this one")


def record(order_id: str, custom_id: str | None, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the output."""
    request_id = order_id.replace("batch_req_", "req_")
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": order_id, "custom_id": custom_id, "response": response, "error": None}


def _is_record(line: bytes) -> bool:
    """Whether this is a whole line of ours, with or without its end."""
    try:
        value = json.loads(line)
        return isinstance(value["id"], str) and isinstance(value["response"]["body"], dict)
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
