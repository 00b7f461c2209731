"""The machine's own limits, measured: only what must hold on any machine is asserted."""

import numpy as np
import pytest
import torch

from minillm.machine import measure


@pytest.fixture
def clock_of(monkeypatch):
    """Give the measurements a clock that returns these readings, so that their arithmetic can be checked."""

    def use(*readings):
        values = iter(readings)
        monkeypatch.setattr(measure, "clock", lambda device: next(values))

    return use


def test_bandwidth_is_bytes_over_the_shortest_time(clock_of):
    """Each of the three ways is read twice, and whichever is fastest counts."""
    slow, fast = (0.0, 2.0, 10.0, 11.0), (0.0, 2.0, 10.0, 10.5)
    for ways in ((slow, slow, fast), (slow, fast, slow), (fast, slow, slow)):
        clock_of(*(reading for way in ways for reading in way))
        assert measure.read_bandwidth(num_bytes=4000, repeats=2) == 4000 / 0.5


def test_flops_count_a_multiplication_and_an_addition_per_term(clock_of):
    clock_of(0.0, 4.0)
    assert measure.matmul_flops(dtype=torch.float32, size=10, repeats=1) == 2 * 10**3 / 4.0


def test_every_byte_is_read(monkeypatch):
    """Each of the ways: a sum over a part of the numbers would report a bandwidth that is not there."""
    results = []

    def once(work, device, repeats):
        results.append(work())
        return 1.0

    monkeypatch.setattr(measure, "_best_seconds", once)
    measure.read_bandwidth(num_bytes=4 * 640)
    assert [float(result.sum()) for result in results] == [640, 640, 640]
    assert max(result.numel() for result in results) <= 64, "and next to nothing is written"


def test_the_second_opinion_reads_every_word_in_pieces(monkeypatch):
    seen = []
    monkeypatch.setattr(measure, "PIECE_WORDS", 4)
    monkeypatch.setattr(measure.np, "bitwise_or", lambda one, other, out: seen.append((len(out), *one, *other)))
    measure._read_pair(np.arange(20, dtype=np.uint64).reshape(2, 10))
    assert [size for size, *_ in seen] == [4, 4, 2]
    assert sorted(word for _, *words in seen for word in words) == list(range(20))


def test_the_matrix_grows_until_a_product_takes_a_while_and_the_best_rate_counts(monkeypatch):
    """256: 34 MFLOP at 10 GFLOP/s; 512: at 40; 1024 takes longer than long enough, at 30: the best was 40."""
    rates = {256: 10e9, 512: 40e9, 1024: 30e9}
    monkeypatch.setattr(measure, "matmul_flops", lambda device, dtype, size, repeats: rates[size])
    assert measure.peak_matmul_flops() == 40e9


def test_a_quick_product_is_the_largest_that_does_not_take_long():
    assert measure.quick_matmul_size({256: 10e9, 512: 40e9, 1024: 30e9}) == 512, "1024 takes 72 ms"
    assert measure.quick_matmul_size({256: 90e9, 512: 80e9, 1024: 70e9}) == 1024, "though it is not the fastest"
    assert measure.quick_matmul_size({256: 1e6}) == 256, "where all take long"


def test_the_matrix_stops_growing_on_a_machine_that_is_fast_for_all_of_them(monkeypatch):
    sizes = []
    monkeypatch.setattr(measure, "matmul_flops", lambda device, dtype, size, repeats: sizes.append(size) or 1e18)
    assert measure.peak_matmul_flops() == 1e18
    assert sizes == [256, 512, 1024, 2048, 4096, 8192]
