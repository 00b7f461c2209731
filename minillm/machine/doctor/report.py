"""Findings as lines for a terminal, or as JSON for a program."""

import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from minillm.machine.doctor.finding import Finding, first_failure

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "not here": "dim", "not checked": "dim"}


def print_report(findings: Sequence[Finding], console: Console) -> None:
    """Group by group, in the order of the stack; a command on a line of its own, whole, to be copied."""
    names = max(len(finding.name) for finding in findings)
    for group, members in itertools.groupby(findings, key=lambda finding: finding.group):
        console.print(Text(group, style="bold"))
        for finding in _together(members):
            console.print(_row(finding, names, console.width), soft_wrap=True)
            if finding.mend:
                console.print(Text(f"      $ {finding.mend}", style="cyan"), soft_wrap=True)
    console.print()
    console.print(Text(summary(findings)), soft_wrap=True)


def _row(finding: Finding, names: int, width: int) -> Text:
    """`  status  name  what it means`, the last wrapped into a column of its own."""
    start = f"  {finding.status:<{len('not checked')}}  "
    indent = len(start) + names + 2
    lines = textwrap.wrap(finding.what, max(20, width - indent)) or [""]
    text = Text(start, style=STYLES[finding.status])
    return text.append(f"{finding.name:<{names}}  " + f"\n{' ' * indent}".join(lines), style="default")


def _together(findings: Iterable[Finding]) -> list[Finding]:
    """Neighbours that are absent, or wait, for one and the same reason become one line."""
    merged: list[Finding] = []
    for (status, what), members in itertools.groupby(findings, key=lambda finding: (finding.status, finding.what)):
        same = list(members)
        if status in ("not here", "not checked") and len(same) > 1:
            names = ", ".join(finding.name for finding in same)
            merged.append(Finding(status, f"{names} ({what})", same[0].mend, f"{len(same)} checks", same[0].group))
        else:
            merged.extend(same)
    return merged


def summary(findings: Sequence[Finding]) -> str:
    """One sentence: what to do first."""
    counts = Counter(finding.status for finding in findings)
    first = first_failure(findings)
    if first is not None:
        return f"Mend first: {first.name}. {first.what[:1].upper()}{first.what[1:]}.\n      $ {first.mend}"
    on_gpu = any(finding.name == "PyTorch sees it" and finding.status == "ok" for finding in findings)
    where = "the GPU is ready" if on_gpu else "the CPU path is ready"
    warnings = counts["warn"]
    return f"Nothing failed: {where}" + (f"; {warnings} warning{'s' if warnings > 1 else ''}." if warnings else ".")


def as_json(findings: Sequence[Finding]) -> str:
    """`{"first_failure": name | null, "counts": {...}, "findings": [{group, name, status, what, mend}, ...]}`."""
    first = first_failure(findings)
    return json.dumps(
        {
            "first_failure": None if first is None else first.name,
            "counts": dict(Counter(finding.status for finding in findings)),
            "findings": [
                {
                    "group": finding.group,
                    "name": finding.name,
                    "status": finding.status,
                    "what": finding.what,
                    "mend": finding.mend or None,
                }
                for finding in findings
            ],
        },
        ensure_ascii=False,
        indent=2,
    )
