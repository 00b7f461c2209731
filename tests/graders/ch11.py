"""Graders of chapter 11: drivers and CUDA versions, code and GPUs, processors, and what to mend first."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.machine.doctor.facts import Cpu, Facts
from minillm.machine.doctor.finding import Check, Finding, Status

# --- 11.1 ------------------------------------------------------------------------------------------------------------

FIRST = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}


def _numbers(version: str | None) -> tuple[int, ...] | None:
    return tuple(map(int, version.split("."))) if version and re.fullmatch(r"[\d.]+", version) else None


def _driver(built: str, highest: str | None, driver: str | None, want: bool | None, *, wsl: bool = False) -> Case:
    given = f"built = {built!r}, highest = {highest!r}, driver = {driver!r}" + (", wsl = True" if wsl else "")

    def observe(f: Function) -> Observation:
        return {"the result": f(built, highest, driver, wsl=True) if wsl else f(built, highest, driver)}

    return Case(given, observe, lambda: {"the result": want})


def _runs(
    *,
    older: Callable[[Any, Any], bool] = lambda asked, stated: asked[:2] <= stated[:2],
    same_major: Callable[[Any, Any], bool] = lambda asked, stated: asked[0] == stated[0],
    new_enough: Callable[[str | None, Any], bool] = lambda driver, first: (_numbers(driver) or (0,)) >= first,
    unknown: Any = None,
    heed_wsl: bool = True,
) -> Callable[..., Any]:
    """The rule with one part of it done otherwise."""

    def answer(built: str, highest: str | None, driver: str | None, *, wsl: bool = False) -> Any:
        asked, stated = _numbers(built), _numbers(highest)
        if asked is None or stated is None:
            return unknown
        if older(asked, stated):
            return True
        if not same_major(asked, stated) or asked[0] not in FIRST:
            return False
        return (wsl and heed_wsl) or new_enough(driver, FIRST[asked[0]])

    return answer


def _text_of(first: tuple[int, ...]) -> str:
    return {450: "450.80.02", 525: "525.60.13"}.get(first[0], "580")


RUNS = Grader(
    cases=[
        _driver("12.8", "12.8", "570.124.06", True),
        _driver("11.8", "12.4", "550.54.15", True),
        _driver("12.8", "12.2", "535.183.01", True),
        _driver("13.0", "12.8", "570.124.06", False),
        _driver("12.8", "11.4", "470.256.02", False),
        _driver("9.2", "12.4", "550.54.15", True),
        _driver("12.8", "12.0", "525.60.13", True),
        _driver("12.4", "12.0", "525.125.06", True),
        _driver("12.4", "12.0", "525.53", False),
        _driver("11.8", "11.0", "450.51.06", False),
        _driver("12.4.1", "12.4", "525.53", True),
        _driver("12.6", "12.0", "522.06", True, wsl=True),
        _driver("13.0", "12.0", "522.06", False, wsl=True),
        _driver("12.8", None, "570.124.06", None),
        _driver("twelve", "12.8", "570.124.06", None),
    ],
    mutants=[
        Mutant(
            _runs(same_major=lambda asked, stated: False),
            "You refuse every program that is newer than what nvidia-smi states. Since CUDA 11, minor versions of one"
            " major are compatible: that number is no ceiling within the major.",
        ),
        Mutant(
            _runs(new_enough=lambda driver, first: True),
            "You let every driver of the same major run it. The first drivers of a major came before minor versions"
            " were compatible: compare the driver's own version with FIRST_DRIVER.",
        ),
        Mutant(
            _runs(older=lambda asked, stated: False),
            "You want the same major number. A newer driver runs programs of all older majors: only the other way"
            " round there is a limit.",
        ),
        Mutant(
            _runs(older=lambda asked, stated: ".".join(map(str, asked)) <= ".".join(map(str, stated))),
            'You compare CUDA versions as texts, and "9.2" is then more than "12.4". Compare tuples of numbers.',
        ),
        Mutant(
            _runs(new_enough=lambda driver, first: (driver or "") >= _text_of(first)),
            'You compare drivers as texts, and "525.125.06" is then less than "525.60.13". Compare tuples of numbers.',
        ),
        Mutant(
            _runs(
                older=lambda asked, stated: asked[:2] >= stated[:2],
                same_major=lambda asked, stated: False,
            ),
            "Upside down: a driver runs what is older than itself, and not what is newer.",
        ),
        Mutant(
            _runs(unknown=False),
            "A version that cannot be read is no reason to say no: False sends somebody to install a driver. Return"
            " None.",
        ),
        Mutant(
            _runs(heed_wsl=False),
            "Under WSL2 the driver's number is that of Windows, which FIRST_DRIVER does not list: with the same major,"
            " the CUDA version that it states has to do.",
        ),
        Mutant(
            _runs(older=lambda asked, stated: asked <= stated),
            "You compare all three numbers of a CUDA version. An update (12.4.1) asks no more of a driver than 12.4:"
            " compare the first two.",
        ),
    ],
    alternatives=[_runs(), lambda b, h, d, *, wsl=False: _runs_by_cases(b, h, d, wsl)],
)


def _runs_by_cases(built: str, highest: str | None, driver: str | None, wsl: bool) -> bool | None:
    asked, stated = _numbers(built), _numbers(highest)
    if asked is None or stated is None:
        return None
    (major, minor), (most, most_minor) = asked[:2], stated[:2]
    if major != most:
        return major < most
    return minor <= most_minor or wsl or (_numbers(driver) or (0,)) >= FIRST[major]


# --- 11.2 ------------------------------------------------------------------------------------------------------------

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)(a?)")
_WHEEL = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
_OLD = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


def _code(capability: str, arch_list: tuple[str, ...], want: bool) -> Case:
    return formula(f"capability = {capability!r}, arch_list = {arch_list!r}", [capability, arch_list], want)


def _has_code(
    *,
    sm: Callable[[Any, Any], bool] = lambda code, gpu: code[0] == gpu[0] and code <= gpu,
    ptx: Callable[[Any, Any], bool] = lambda code, gpu: code <= gpu,
    exact: Callable[[str, Any, Any], bool] | None = lambda kind, code, gpu: code == gpu,
    split: Callable[[str, str], tuple[int, int]] = lambda major, minor: (int(major), int(minor)),
) -> Callable[..., bool]:
    def answer(capability: str, arch_list: tuple[str, ...]) -> bool:
        major, minor = capability.split(".")
        gpu = (int(major), int(minor))
        for match in filter(None, map(_ARCH.fullmatch, arch_list)):
            kind, code = match[1], split(match[2], match[3])
            if match[4] and exact is not None:
                fits = exact(kind, code, gpu)
            else:
                fits = sm(code, gpu) if kind == "sm" else ptx(code, gpu)
            if fits:
                return True
        return False

    return answer


HAS_CODE = Grader(
    cases=[
        _code("9.0", _WHEEL, True),
        _code("8.9", _WHEEL, True),
        _code("10.0", ("sm_100",), True),
        _code("12.0", _OLD, False),
        _code("12.0", (*_OLD, "compute_90"), True),
        _code("8.9", ("compute_80",), True),
        _code("7.0", ("sm_75", "sm_80", "sm_90"), False),
        _code("8.0", ("sm_86",), False),
        _code("9.0", ("sm_80", "sm_86", "sm_89"), False),
        _code("9.0", ("sm_90a",), True),
        _code("12.1", ("sm_120a",), False),
        _code("12.1", ("sm_120",), True),
        _code("7.5", ("compute_90",), False),
        _code("12.0", ("compute_90a",), False),
        _code("8.6", (), False),
    ],
    mutants=[
        Mutant(
            lambda c, a: f"sm_{c.replace('.', '')}" in a,
            "You look for the GPU's own name in the list. Machine code also runs on later minor numbers of its major:"
            " an 8.9 runs sm_86, and many wheels have no sm_89.",
        ),
        Mutant(
            _has_code(sm=lambda code, gpu: code <= gpu),
            "You let machine code run on every later GPU. It stops at the end of its major number; only PTX goes on.",
        ),
        Mutant(
            _has_code(sm=lambda code, gpu: code[0] == gpu[0]),
            "You compare majors alone. Within a major, code runs on the same minor number or a later one: sm_86 uses"
            " what an 8.0 does not have.",
        ),
        Mutant(
            _has_code(ptx=lambda code, gpu: False, exact=lambda kind, code, gpu: kind == "sm" and code == gpu),
            "You skip compute_90. That is PTX, which the driver compiles for any later GPU: it runs.",
        ),
        Mutant(
            _has_code(ptx=lambda code, gpu: True),
            "You let PTX run on every GPU. It is compiled for later ones, not for those that came before it.",
        ),
        Mutant(
            _has_code(ptx=lambda code, gpu: code[0] == gpu[0] and code <= gpu),
            "You keep PTX within its major number, as if it were machine code. It is compiled anew when it is loaded,"
            " and crossing majors is what it is for.",
        ),
        Mutant(
            _has_code(exact=None),
            "You read names as if an a at their end (sm_120a, compute_90a) meant nothing. It stands for features of"
            " that one chip, and such code, PTX too, runs nowhere else.",
        ),
        Mutant(
            _has_code(exact=lambda kind, code, gpu: False),
            "You skip names that end in a. Such code runs on exactly its own capability: an H100 (9.0) runs sm_90a.",
        ),
        Mutant(
            _has_code(split=lambda major, minor: (int((major + minor)[0]), int((major + minor)[1:]))),
            "You take the first digit for the major number. sm_100 is 10.0: the last digit is the minor number.",
        ),
    ],
    alternatives=[_has_code(), lambda c, a: any(_fits(c, name) for name in a)],
)


def _fits(capability: str, name: str) -> bool:
    kind, _, number = name.partition("_")
    code, gpu = int(number.rstrip("a")), int(capability.replace(".", ""))
    if number.endswith("a"):
        return code == gpu
    return code <= gpu and (kind == "compute" or code // 10 == gpu // 10)


# --- 11.3 ------------------------------------------------------------------------------------------------------------


def _cpus(want: int | None, **known: Any) -> Case:
    words = ", ".join(f"{name} = {value!r}" for name, value in known.items()) or "nothing is known"
    return formula(words, [Facts(**known)], want)


def _usable(
    *,
    count: Callable[[Facts], int | None] = lambda f: f.cpus_allowed or f.cpus or f.cpu.logical,
    whole: Callable[[float], Any] = lambda quota: max(1, math.floor(quota)),
    both: Callable[[Any, Any], Any] = min,
    unknown: Any = None,
) -> Callable[[Facts], Any]:
    def answer(facts: Facts) -> Any:
        number = count(facts)
        if number is None:
            return unknown
        return number if facts.cpu_quota is None else both(number, whole(facts.cpu_quota))

    return answer


USABLE = Grader(
    cases=[
        _cpus(16, cpus=16, cpus_allowed=16),
        _cpus(8, cpus=64, cpus_allowed=8),
        _cpus(4, cpus=64, cpus_allowed=64, cpu_quota=4.0),
        _cpus(2, cpus=64, cpus_allowed=2, cpu_quota=4.0),
        _cpus(2, cpus=8, cpus_allowed=8, cpu_quota=2.5),
        _cpus(3, cpus=8, cpus_allowed=6, cpu_quota=3.75),
        _cpus(1, cpus=8, cpus_allowed=8, cpu_quota=0.5),
        _cpus(12, cpus=12),
        _cpus(7, cpu=Cpu(logical=7)),
        _cpus(None),
        _cpus(None, cpu_quota=2.0),
    ],
    mutants=[
        Mutant(
            _usable(count=lambda f: f.cpus or f.cpu.logical, both=lambda number, quota: number),
            "You count the machine's processors, as os.cpu_count() does. A process may be confined to some of them, and"
            " a container to a share of their time.",
        ),
        Mutant(
            _usable(both=lambda number, quota: number),
            "You leave the quota out. A container with `--cpus 4` still sees 64 processors: the limit is on time, and"
            " it is in cpu.max alone.",
        ),
        Mutant(
            _usable(both=lambda number, quota: quota),
            "You take the quota wherever there is one. Four processors' worth of time is of no use on two processors:"
            " both limits hold.",
        ),
        Mutant(
            _usable(count=lambda f: f.cpus or f.cpu.logical),
            "You leave the affinity out: of 64 processors, this process may run on 8.",
        ),
        Mutant(
            _usable(whole=lambda quota: max(1, math.ceil(quota))),
            "You round up: 3 threads on 2.5 processors' worth of time, and each step waits for the one that is stopped."
            " Round down.",
        ),
        Mutant(
            _usable(whole=lambda quota: max(1, round(quota))),
            "You round to the nearest: 3.75 becomes 4. One thread too many is stopped in every period, and the others"
            " wait for it. Round down.",
        ),
        Mutant(
            _usable(whole=math.floor),
            "Half a processor's worth of time makes 0 threads in your code. There is always at least one.",
        ),
        Mutant(
            _usable(whole=lambda quota: max(1.0, quota)),
            "You return a share of a thread. Round the quota down to a whole number (int).",
        ),
        Mutant(
            _usable(count=lambda f: f.cpus_allowed or f.cpus),
            "Where neither the affinity nor the machine's number is known, /proc/cpuinfo may still have counted:"
            " facts.cpu.logical.",
        ),
        Mutant(
            _usable(count=lambda f: f.cpus_allowed),
            "On a system without affinities cpus_allowed is None, and yet the machine's number is known: facts.cpus.",
        ),
        Mutant(
            lambda f: (
                max(1, math.floor(f.cpu_quota)) if f.cpu_quota is not None and _usable()(f) is None else _usable()(f)
            ),
            "You take the quota for a count of processors. It says how much time there is, not on how many: where no"
            " count is known, nothing is. Return None.",
        ),
        Mutant(
            _usable(unknown=1),
            "Where nothing is known you say 1. That is a guess, and nobody can tell it from a count: return None.",
        ),
    ],
    alternatives=[_usable(), lambda f: _smallest(f)],
)


def _smallest(facts: Facts) -> int | None:
    counts = [n for n in (facts.cpus_allowed, facts.cpus, facts.cpu.logical) if n is not None][:1]
    if not counts:
        return None
    if facts.cpu_quota is not None:
        counts.append(int(facts.cpu_quota) if facts.cpu_quota >= 1 else 1)
    return sorted(counts)[0]


# --- 11.4 ------------------------------------------------------------------------------------------------------------

Layer = tuple[str, Status, tuple[str, ...], tuple[str, ...]]
"""A check for a case: its name, what it answers when asked, its `needs`, its `after`."""


def _layer(name: str, answer: Status, needs: str = "", after: str = "") -> Layer:
    return name, answer, tuple(needs.split()), tuple(after.split())


def _stack(*layers: Layer, want: Sequence[str]) -> Case:
    """A case; `want` has one text per layer: "asked", or what stands in the place of an answer."""
    words = "; ".join(
        f"{name} (would say {answer}"
        + (f", needs {' '.join(needs)}" if needs else "")
        + (f", after {' '.join(after)}" if after else "")
        + ")"
        for name, answer, needs, after in layers
    )

    def observe(f: Function) -> Observation:
        asked: list[str] = []

        def check(name: str, answer: Status, needs: tuple[str, ...], after: tuple[str, ...]) -> Check:
            def ask(facts: Facts) -> Finding:
                asked.append(name)
                return Finding(answer, f"what {name} says")

            return Check(name, f"group of {name}", ask, needs, after)

        checks = [check(*layer) for layer in layers]
        found = f(Facts(), checks)
        said = {finding.name: finding for finding in found}
        return {
            **{f"the finding of {name}": _said(said.get(name), name in asked) for name, *_ in layers},
            "the names in their order": ", ".join(finding.name for finding in found),
            "the groups": ", ".join(finding.group for finding in found),
        }

    def wanted() -> Observation:
        names = [name for name, *_ in layers]
        answers = [
            f"{answer}: what {name} says, asked" if text == "asked" else text
            for (name, answer, *_), text in zip(layers, want, strict=True)
        ]
        return {
            **{f"the finding of {name}": text for name, text in zip(names, answers, strict=True)},
            "the names in their order": ", ".join(names),
            "the groups": ", ".join(f"group of {name}" for name in names),
        }

    return Case(words, observe, wanted)


def _said(finding: Finding | None, asked: bool) -> str:
    if finding is None:
        return "none" + (", but asked" if asked else "")
    return f"{finding.status}: {finding.what}" + (", asked" if asked else "")


def _diagnose(
    *,
    spread: bool = True,
    root: bool = True,
    needs: bool = True,
    after: bool = True,
    after_absent: bool = False,
    absent_first: bool = False,
    absent_fails: bool = False,
    blocking: tuple[str, ...] = ("fail",),
    stop: bool = False,
    named: bool = True,
) -> Callable[..., list[Finding]]:
    """The walk with one part of it done otherwise."""

    def walk(facts: Facts, checks: Iterable[Check]) -> list[Finding]:
        findings: list[Finding] = []
        blocked: dict[str, str] = {}
        absent: dict[str, str] = {}
        for check in checks:
            grounds = (*check.needs, *(check.after if after else ())) if needs else ()
            failed = next((blocked[name] for name in grounds if name in blocked), None)
            there = (*check.needs, *check.after) if after_absent else check.needs
            missing = next((absent[name] for name in there if needs and name in absent), None)
            if missing is not None and absent_fails:
                failed = failed or missing
            if failed is not None and not (absent_first and missing is not None):
                finding = Finding("not checked", f"depends on: {failed}")
            elif missing is not None:
                finding = Finding("not here", f"depends on: {missing}")
            else:
                finding = check.ask(facts)
                failed = None
            if finding.status in blocking or (spread and failed is not None):
                blocked[check.name] = failed if failed is not None and root else check.name
            elif finding.status == "not here" and (spread or missing is None):
                absent[check.name] = missing if missing is not None and root else check.name
            findings.append(replace(finding, name=check.name, group=check.group) if named else finding)
            if stop and finding.status == "fail":
                break
        return findings

    return walk


def _diagnose_by_looking_down(facts: Facts, checks: Iterable[Check]) -> list[Finding]:
    """For each check, look down through all that it stands on, to the bottom."""
    known = {check.name: check for check in checks}
    answers: dict[str, Finding] = {}

    def bottom(name: str, status: str) -> str | None:
        check = known[name]
        grounds = (*check.needs, *(check.after if status == "fail" else ()))
        below = next((found for ground in grounds if (found := bottom(ground, status)) is not None), None)
        if below is not None:
            return below
        return name if name in answers and answers[name].status == status else None

    result = []
    for name, check in known.items():
        failed, missing = bottom(name, "fail"), bottom(name, "not here")
        if failed is not None:
            finding = Finding("not checked", f"depends on: {failed}")
        elif missing is not None:
            finding = Finding("not here", f"depends on: {missing}")
        else:
            finding = answers[name] = check.ask(facts)
        result.append(replace(finding, name=name, group=check.group))
    return result


_ON_DRIVER = "not checked: depends on: driver"
DIAGNOSE = Grader(
    cases=[
        _stack(
            _layer("bus", "ok"),
            _layer("driver", "ok", "bus"),
            _layer("disk", "warn"),
            want=["asked", "asked", "asked"],
        ),
        _stack(
            _layer("bus", "ok"),
            _layer("driver", "fail", "bus"),
            _layer("files", "fail", "driver"),
            _layer("smi", "fail", "files"),
            _layer("disk", "ok"),
            want=["asked", "asked", _ON_DRIVER, _ON_DRIVER, "asked"],
        ),
        _stack(
            _layer("bus", "not here"),
            _layer("driver", "fail", "bus"),
            _layer("smi", "fail", "driver"),
            _layer("torch", "ok"),
            want=["asked", "not here: depends on: bus", "not here: depends on: bus", "asked"],
        ),
        _stack(
            _layer("driver", "warn"),
            _layer("log", "not checked", "driver"),
            _layer("smi", "ok", "log"),
            want=["asked", "asked", "asked"],
        ),
        _stack(
            _layer("mig", "fail"),
            _layer("fabric", "not here"),
            _layer("torch", "fail", "", "fabric mig"),
            _layer("model", "ok", "torch"),
            want=["asked", "asked", "not checked: depends on: mig", "not checked: depends on: mig"],
        ),
        _stack(
            _layer("fabric", "not here"),
            _layer("torch", "ok", "", "fabric"),
            want=["asked", "asked"],
        ),
        _stack(
            _layer("toolkit", "not here"),
            _layer("driver", "fail"),
            _layer("image", "ok", "toolkit driver"),
            _layer("server", "ok", "image"),
            want=["asked", "asked", _ON_DRIVER, _ON_DRIVER],
        ),
    ],
    mutants=[
        Mutant(
            _diagnose(needs=False, after=False),
            "You ask every check. One missing driver then makes five failures, and whoever reads them mends the last.",
        ),
        Mutant(
            _diagnose(spread=False),
            "You look one layer down only. A check whose ground was not checked has no ground either: what blocks it"
            " must spread to all that stands on it.",
        ),
        Mutant(
            _diagnose(root=False),
            "You name the layer right below. That one only waits, too: name the one at the bottom, to be mended.",
        ),
        Mutant(
            _diagnose(absent_fails=True),
            "You treat what is not here as a failure. A machine without a GPU has no fault to mend: what stands on an"
            " absent part is absent too.",
        ),
        Mutant(
            _diagnose(blocking=("fail", "warn")),
            'You stop at warnings. "warn" means that it works, if less well, so what stands on it can be asked.',
        ),
        Mutant(
            _diagnose(blocking=("fail", "not checked")),
            'You stop at a check that says "not checked" itself. It could not be looked at, which is no failure: go on'
            " and ask.",
        ),
        Mutant(
            _diagnose(after=False),
            "You look at needs alone. What is named in after must not have failed, either.",
        ),
        Mutant(
            _diagnose(after_absent=True),
            "You treat after as needs. A board without switches has no fabric to wait for: what is named in after may"
            " be absent.",
        ),
        Mutant(
            _diagnose(absent_first=True),
            "Where one need is absent and another failed, you say that it is not here. The failure comes first: it is"
            " the one that can be mended.",
        ),
        Mutant(
            _diagnose(stop=True),
            "You stop at the first failure. What does not stand on it can be asked all the same.",
        ),
        Mutant(
            _diagnose(named=False),
            "Your findings have no name and no group: nobody can tell which check they are of. See `replace`.",
        ),
    ],
    alternatives=[_diagnose(), _diagnose_by_looking_down],
)

GRADERS = {"11.1": RUNS, "11.2": HAS_CODE, "11.3": USABLE, "11.4": DIAGNOSE}
