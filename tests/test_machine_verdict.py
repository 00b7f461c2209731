"""The verdict, and the ways out: each way that is named works, and one step further does not."""

from dataclasses import replace

import pytest

from minillm.machine.formats import FORMATS, QUANTIZATIONS
from minillm.machine.memory import Workload, weight_bytes
from minillm.machine.verdict import (
    DOES_NOT_FIT,
    FITS,
    TIGHT,
    Question,
    gpus_needed,
    judge,
    largest_batch,
    largest_context,
    smaller_formats,
)
from minillm.machine.well_known import BY_NAME

GPU_80GB = 80 * 2**30
LLAMA_2_13B = Question(BY_NAME["llama-2-13b"].shape, Workload(4096, 32), GPU_80GB)
LLAMA_3_8B = Question(BY_NAME["llama-3-8b"].shape, Workload(8192, 8), GPU_80GB)
LLAMA_3_70B = Question(BY_NAME["llama-3-70b"].shape, Workload(8192, 1), GPU_80GB)


def verdict(question: Question) -> str:
    return judge(question.demand().total, question.memory)


def test_what_leaves_less_than_a_tenth_is_tight() -> None:
    assert [judge(total, 100) for total in (90, 91, 100, 101)] == [FITS, TIGHT, TIGHT, DOES_NOT_FIT]


def test_8b_fits_on_one_gpu_of_80_gb_and_70b_on_two_and_13b_at_batch_32_does_not() -> None:
    assert verdict(LLAMA_3_8B) == FITS
    assert gpus_needed(LLAMA_3_8B) == 1
    assert verdict(LLAMA_3_70B) == DOES_NOT_FIT
    assert gpus_needed(LLAMA_3_70B) == 2
    assert verdict(replace(LLAMA_3_70B, load=replace(LLAMA_3_70B.load, gpus=2))) == FITS
    assert verdict(LLAMA_2_13B) == DOES_NOT_FIT
    assert verdict(replace(LLAMA_2_13B, load=Workload(4096, 1))) == FITS


@pytest.mark.parametrize("question", [LLAMA_2_13B, LLAMA_3_8B], ids=["13b", "8b"])
def test_the_largest_context_and_batch_fit_and_one_more_does_not(question: Question) -> None:
    context, batch = largest_context(question), largest_batch(question)
    assert question.fits(replace(question.load, context=context))
    longest = question.shape.max_position_embeddings
    assert context == longest or not question.fits(replace(question.load, context=context + 1))
    assert question.fits(replace(question.load, batch=batch))
    assert not question.fits(replace(question.load, batch=batch + 1))


def test_where_not_even_the_weights_fit_no_context_and_no_batch_is_named() -> None:
    assert largest_context(LLAMA_3_70B) == 0
    assert largest_batch(LLAMA_3_70B) == 0


def test_the_formats_that_are_named_are_all_that_fit_the_largest_first() -> None:
    named = smaller_formats(LLAMA_3_70B)
    sizes = [weight_bytes(LLAMA_3_70B.shape, FORMATS[name]) for name in named]
    assert sizes == sorted(sizes, reverse=True)
    for name in QUANTIZATIONS:
        fits = LLAMA_3_70B.fits(replace(LLAMA_3_70B.load, weights=FORMATS[name]))
        assert (name in named) == fits, name
    assert "int4" in named
    assert "q8_0" not in named


def test_a_format_larger_than_what_a_file_stores_is_no_way_out() -> None:
    stored = weight_bytes(LLAMA_3_8B.shape, FORMATS["q4_k"])
    small = replace(LLAMA_3_8B, memory=30 * 10**9, stored_bytes=stored)
    assert "q8_0" not in smaller_formats(small)
    assert "q8_0" in smaller_formats(replace(small, stored_bytes=None))


def test_neither_gpus_nor_formats_are_named_that_would_cut_a_block_of_weights() -> None:
    """29,568 / 2 is no multiple of 128: servers refuse Qwen2.5 72B in groups of 128 on two GPUs."""
    shape = BY_NAME["qwen2.5-72b"].shape
    alone = Question(shape, Workload(4096, weights=FORMATS["int4"]), 24 * 2**30)
    assert gpus_needed(alone) is None
    assert gpus_needed(replace(alone, load=replace(alone.load, weights=FORMATS["int4-g64"]))) == 2
    named = smaller_formats(Question(shape, Workload(4096, gpus=2), 24 * 2**30))
    assert "int4-g64" in named
    assert "int4" not in named


def test_where_no_number_of_gpus_is_enough_none_is_named() -> None:
    assert gpus_needed(replace(LLAMA_3_70B, memory=2**30)) is None


def test_a_cpu_pays_no_overhead() -> None:
    on_cpu = replace(LLAMA_3_8B, overhead=0)
    assert LLAMA_3_8B.demand().total - on_cpu.demand().total == LLAMA_3_8B.overhead
