"""`python -m minillm.bench`: tokens per second of this engine, and of transformers on the same weights, side by side.

The two take turns within one run, so that a machine whose speed drifts treats them alike; compare the ratios.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from minillm.cli import Parser, guarded
from minillm.errors import InputError
from minillm.metrics import time_per_output_token

if TYPE_CHECKING:
    import torch

PROG = "minillm bench"


@dataclass(frozen=True)
class Run:
    """One request of one engine: rates in tokens per second. A prompt's ends when its first token is chosen (TTFT)."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float


# An engine, loaded: given prompt ids and a number of tokens to generate, one timed request.
Engine = Callable[[list[int], int], Run]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    parser = Parser(prog=PROG, description="Measure prefill and decode at batch 1, greedily.")
    parser.add_argument("--model", help="an alias, a directory or a hub id (default: smollm2-135m)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--dtype", nargs="+", default=["auto"], help="one or more of float32, bfloat16, float16, auto")
    parser.add_argument("--compare", choices=["transformers"], help="also run this engine, in turns")
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="counted runs, after one that is not")
    parser.add_argument("--json", action="store_true", help="every run as JSON on stdout")
    args = parser.parse_args(argv)
    return guarded(lambda: _bench(args), PROG)


def _bench(args: argparse.Namespace) -> int:
    import torch

    from minillm.device import dtype_name, pick_device, pick_dtype
    from minillm.loading import DEFAULT_MODEL, open_checkpoint, resolve

    for flag, value, least in (("prompt-tokens", args.prompt_tokens, 1), ("runs", args.runs, 1)):
        if value < least:
            raise InputError(f"--{flag} must be at least {least}, not {value}")
    if args.new_tokens < 2:
        raise InputError(f"--new-tokens must be at least 2 (a rate needs two points in time), not {args.new_tokens}")
    device = pick_device(args.device)
    dtypes = [pick_dtype(name, device) for name in args.dtype]
    path = resolve(DEFAULT_MODEL if args.model is None else args.model)
    if args.compare and path.is_file():
        raise InputError(f"--compare needs a directory with safetensors, which both engines read, not {path}")
    config = open_checkpoint(path).config
    if args.prompt_tokens + args.new_tokens > config.max_position_embeddings:
        raise InputError(
            f"--prompt-tokens and --new-tokens are {args.prompt_tokens + args.new_tokens:,} in all, more than this "
            f"model's context of {config.max_position_embeddings:,}"
        )
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {device}", file=sys.stderr)
    if busy := machine_is_busy():
        print(f"caution: {busy}; do not trust these figures", file=sys.stderr)
    results = {}
    for dtype in dtypes:
        engines: dict[str, Engine] = {"minillm": minillm_engine(path, device, dtype)}
        if args.compare:
            engines["transformers"] = transformers_engine(path, device, dtype)
        runs = take_turns(engines, config.vocab_size, args.prompt_tokens, args.new_tokens, args.runs)
        results[dtype_name(dtype)] = runs
        _print_table(dtype_name(dtype), runs, sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps({d: {e: [asdict(r) for r in rs] for e, rs in runs.items()} for d, runs in results.items()}))
    return 0


def machine_is_busy(watched_s: float = 0.5) -> str | None:
    """A sentence if other programs used more than a tenth of the processors while this one slept (Linux only)."""
    before = _cpu_ticks()
    time.sleep(watched_s)
    after = _cpu_ticks()
    if before is None or after is None or after[1] == before[1]:
        return None
    share = (after[0] - before[0]) / (after[1] - before[1])
    return f"other programs are using {share:.0%} of the processors" if share > 0.1 else None


def _cpu_ticks() -> tuple[int, int] | None:
    """(busy, total) ticks of all processors since boot; None where the system does not say."""
    try:
        user, nice, system, idle, iowait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(rest[:3])  # rest: interrupts, soft interrupts, time stolen by the hypervisor
    return busy, busy + idle + iowait


def take_turns(
    engines: dict[str, Engine], vocab_size: int, prompt_tokens: int, new_tokens: int, runs: int
) -> dict[str, list[Run]]:
    """A B A B ...; the first round warms up and is not counted. Each run gets other prompt ids."""
    import torch

    generator = torch.Generator().manual_seed(0)
    measured: dict[str, list[Run]] = {name: [] for name in engines}
    for turn in range(runs + 1):
        ids = torch.randint(0, vocab_size, (prompt_tokens,), generator=generator).tolist()
        for name, engine in engines.items():
            run = engine(ids, new_tokens)
            if turn > 0:
                measured[name].append(run)
    return measured


def minillm_engine(path: Path, device: "torch.device", dtype: "torch.dtype") -> Engine:
    """Our own engine."""
    from minillm.generation import Generation
    from minillm.llm import LLM
    from minillm.sampler import SamplingParams

    llm = LLM(path, device=device, dtype=dtype)

    def run(ids: list[int], new_tokens: int) -> Run:
        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        generation = Generation(llm.model, llm.tokenizer, ids, params, llm.new_cache(len(ids) + new_tokens))
        generation.run()
        return _rates(len(ids), generation.token_times_s)

    return run


def transformers_engine(path: Path, device: "torch.device", dtype: "torch.dtype") -> Engine:
    """`generate()` of transformers, greedy, with its own defaults; tokens are timed as they come."""
    try:
        from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
    except ImportError:
        raise InputError('--compare transformers needs it installed: pip install "minillm[test]"') from None
    import torch
    from transformers.utils.logging import disable_progress_bar

    from minillm.device import clock

    disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    model.to(device)

    class Times(StoppingCriteria):
        """Never stops; notes when each token was there."""

        def __init__(self) -> None:
            self.seconds: list[float] = []

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            self.seconds.append(clock(device))
            return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def run(ids: list[int], new_tokens: int) -> Run:
        tokens = torch.tensor([ids], device=device)
        times = Times()
        started = clock(device)
        model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            min_new_tokens=new_tokens,
            max_new_tokens=new_tokens,
            stopping_criteria=StoppingCriteriaList([times]),
        )
        return _rates(len(ids), [at - started for at in times.seconds])

    return run


def _rates(prompt_tokens: int, token_times_s: Sequence[float]) -> Run:
    """The same rule for every engine, from the seconds at which its tokens were there."""
    tpot_s = time_per_output_token(token_times_s)
    assert tpot_s is not None, "at least two tokens were asked for"
    return Run(prompt_tokens / token_times_s[0], 1 / tpot_s)


def _print_table(dtype: str, measured: dict[str, list[Run]], file: Any) -> None:
    """Median (least to most) of each rate, and the ratio of the medians."""
    rates = {
        "prefill tok/s": lambda run: run.prefill_tokens_per_s,
        "decode tok/s": lambda run: run.decode_tokens_per_s,
    }
    for title, rate in rates.items():
        middles = {}
        for name, runs in measured.items():
            values = sorted(rate(run) for run in runs)
            middles[name] = median(values)
            spread = f"({values[0]:.1f} to {values[-1]:.1f})"
            print(f"{dtype:<9} {title:<14} {name:<13} {middles[name]:8.1f}  {spread}", file=file)
        if len(middles) > 1:
            ours, theirs = middles["minillm"], middles["transformers"]
            print(f"{dtype:<9} {title:<14} {'ratio':<13} {ours / theirs:8.2f}", file=file)


if __name__ == "__main__":
    raise SystemExit(main())
