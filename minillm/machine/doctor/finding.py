"""A finding, a check, and the one rule of bringing up a box: a layer is not judged before those it stands on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from minillm.machine.doctor.facts import Facts

Status = Literal["ok", "warn", "fail", "not here", "not checked"]
"""ok; warn: works, but slower or smaller than it could be; fail: mend this; not here: this machine has no such
part, which is no fault; not checked: a layer below failed, or the system does not let us look."""


@dataclass(frozen=True)
class Finding:
    """What a check found: one plain sentence, and the command that mends it or says more."""

    status: Status
    what: str
    mend: str = ""
    name: str = ""
    group: str = ""


@dataclass(frozen=True)
class Check:
    """A question put to the facts, and the checks below it.

    `needs`: what they ask about must be there and work. `after`: it must not have failed, but may be absent.
    """

    name: str
    group: str
    ask: Callable[[Facts], Finding]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def ok(what: str) -> Finding:
    """As it should be."""
    return Finding("ok", what)


def warn(what: str, mend: str = "") -> Finding:
    """It works, but not as well as it could."""
    return Finding("warn", what, mend)


def fail(what: str, mend: str) -> Finding:
    """It does not work. There is always something to do about it."""
    return Finding("fail", what, mend)


def not_here(what: str) -> Finding:
    """There is no such part in this machine."""
    return Finding("not here", what)


def not_checked(what: str, mend: str = "") -> Finding:
    """It could not be looked at."""
    return Finding("not checked", what, mend)


def diagnose(facts: Facts, checks: Iterable[Check]) -> list[Finding]:
    """Put the checks to the facts in their order. The first failure is the one to mend: what needs it waits."""
    findings: list[Finding] = []
    blocked: dict[str, str] = {}  # check -> the failed check that it waits for, or itself
    absent: dict[str, str] = {}  # likewise, for what this machine does not have
    for check in checks:
        failed = next((blocked[need] for need in (*check.needs, *check.after) if need in blocked), None)
        missing = next((absent[need] for need in check.needs if need in absent), None)
        if failed is not None:
            finding = not_checked(f"depends on: {failed}")
        elif missing is not None:
            finding = not_here(f"depends on: {missing}")
        else:
            finding = check.ask(facts)
        if finding.status == "fail" or failed is not None:
            blocked[check.name] = failed or check.name
        elif finding.status == "not here":
            absent[check.name] = missing or check.name
        findings.append(replace(finding, name=check.name, group=check.group))
    return findings


def first_failure(findings: Iterable[Finding]) -> Finding | None:
    """The finding to begin with; None if nothing failed."""
    return next((finding for finding in findings if finding.status == "fail"), None)
