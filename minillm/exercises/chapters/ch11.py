"""The exercises of chapter 11, *Bringing up the box*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "11.1",
        "Does this driver run this CUDA?",
        "minillm.machine.doctor.torch_build:runs",
        (
            "Read the three versions into tuples first. Which of them may be None, and what do you answer then?",
            "One comparison settles all older versions: asked[:2] <= stated[:2]. Now only higher ones are left.",
            "A higher one runs only if asked[0] == stated[0], and then if wsl, or if the driver's own tuple is at least"
            " version_tuple(FIRST_DRIVER.get(asked[0])).",
        ),
        section="four-numbers-called-cuda",
    ),
    Exercise(
        "11.2",
        "Has this PyTorch code for this GPU?",
        "minillm.machine.doctor.torch_build:has_code_for",
        (
            "Make pairs of numbers of both sides: (8, 9) for the GPU, (8, 6) for sm_86. Pairs compare as you need it.",
            "Mind the digits: sm_100 is (10, 0). The last digit is the minor number, all before it the major one.",
            'Machine code: same major, and code <= gpu. PTX: code <= gpu. An "a" at the end of either: code == gpu.'
            r" A pattern that takes a name apart: (sm|compute)_(\d+)(\d)(a?)",
        ),
        section="four-numbers-called-cuda",
    ),
    Exercise(
        "11.3",
        "How many processors are yours",
        "minillm.machine.doctor.host:usable_cpus",
        (
            "Two questions: on which processors may it run, and for how much time?",
            "The first of cpus_allowed, cpus and cpu.logical that is known; then the smaller of it and the quota.",
            "min(allowed, max(1, math.floor(facts.cpu_quota))), where there is a quota and the number is known.",
        ),
        section="and-without-a-gpu",
    ),
    Exercise(
        "11.4",
        "What to mend first",
        "minillm.machine.doctor.finding:diagnose",
        (
            "Walk through the checks once, and keep note of which ones are no ground to stand on.",
            "Two dicts do it: blocked and absent, each from a check's name to the name at the bottom. A check that"
            " failed is blocked by itself; one that waits, by whatever its need is blocked by.",
            "failed = next((blocked[name] for name in (*check.needs, *check.after) if name in blocked), None), and"
            " missing likewise from absent, over check.needs alone. Then three branches, and afterwards the two notes:"
            ' if finding.status == "fail" or failed, blocked[check.name] = failed or check.name; else, if it is "not'
            ' here", the same with absent.',
        ),
        section="each-layer-presumes-the-one-below",
    ),
)
