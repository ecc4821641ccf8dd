"""Bits are the numbers of the roaring bitmap they were read from; no bytes at all bring the reader out of bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pyroaring import BitMap

from muster_server.pyext import bits

WORDS = 4096
BITS = 64 * WORDS

spans = st.tuples(st.integers(0, BITS - 1), st.integers(1, 9000), st.sampled_from([1, 1, 2, 7]))


def bitmap(parts: list[tuple[int, int, int]], runs: bool) -> BitMap:
    made = BitMap()
    for first, length, step in parts:
        made |= BitMap(range(first, min(BITS, first + length * step), step))
    if runs:
        made.run_optimize()
    return made


def words(count: int = WORDS) -> NDArray[np.uint64]:
    return np.full(count, 0xAA, dtype=np.uint64)


@settings(max_examples=100, deadline=None)
@given(st.lists(spans, max_size=8), st.booleans())
def test_a_roaring_bitmap_is_read_as_it_is(parts: list[tuple[int, int, int]], runs: bool) -> None:
    made, out = bitmap(parts, runs), words()
    bits.read(made.serialize(), out)
    assert np.array_equal(bits.numbers(out), np.array(made, dtype=np.uint32))
    assert bits.count(out) == len(made)
    again = words()
    bits.write(bits.numbers(out), again)
    assert np.array_equal(again, out)


@settings(max_examples=200, deadline=None)
@given(st.lists(spans, max_size=3), st.booleans(), st.data())
def test_cut_and_damaged_bytes_are_refused_or_read_but_never_crash(
    parts: list[tuple[int, int, int]], runs: bool, data: st.DataObject
) -> None:
    whole = bitmap(parts, runs).serialize()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ValueError, match="portable"):
        bits.read(cut, words())
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(len(whole), 64) - 1))] = data.draw(st.integers(0, 255))
    for size in (1, WORDS):
        try:
            bits.read(bytes(damaged), words(size))
        except ValueError:
            continue


@pytest.mark.parametrize("numbers", [range(64, 65), range(0, 70), range(0, 9000, 2), [65_536], range(63, 8000)])
@pytest.mark.parametrize("runs", [False, True])
def test_a_number_beyond_the_words_is_refused(numbers: range | list[int], runs: bool) -> None:
    made = BitMap(numbers)
    if runs:
        made.run_optimize()
    with pytest.raises(ValueError, match="beyond the 64"):
        bits.read(made.serialize(), words(1))
    with pytest.raises(ValueError, match="beyond the 64"):
        bits.write(np.array(numbers, dtype=np.uint32), words(1))


def test_the_last_bit_of_all_is_read() -> None:
    for made in (BitMap([BITS - 1]), BitMap(range(BITS - 5000, BITS)), BitMap(range(1, BITS, 2)), BitMap()):
        out = words()
        bits.read(made.serialize(), out)
        assert list(bits.numbers(out)) == list(made)
