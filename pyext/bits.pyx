# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sets of dense numbers as bits, 64 a word: read from the portable form of a roaring bitmap, and written out as numbers.

Owns the reading of the portable form. It must not know what the numbers stand for. Every length is checked against the
bytes that are there before anything is read.

Source: https://github.com/RoaringBitmap/RoaringFormatSpec (little-endian, as are the machines Muster runs on).
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy as np


cdef extern from "words.h":
    Py_ssize_t count_words "muster_count"(const uint64_t *words, Py_ssize_t length) noexcept nogil
    int lowest_bit "muster_lowest"(uint64_t word) noexcept nogil


cdef enum:
    NO_RUNS = 12346
    WITH_RUNS = 12347
    OFFSETS_FROM = 4  # with runs, fewer containers have no offsets
    ARRAY_MAX = 4096
    CHUNK_WORDS = 1024  # of 65,536 numbers
    CHUNK_BYTES = 8192


cdef inline uint16_t two(const uint8_t *at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
    return value


cdef void set_range(uint64_t *words, uint32_t first, uint32_t last) noexcept nogil:
    """Sets the bits `first` to `last`, both included."""
    cdef uint32_t word = first >> 6, end = last >> 6
    cdef uint64_t from_first = ~<uint64_t>0 << (first & 63), to_last = ~<uint64_t>0 >> (63 - (last & 63))
    if word == end:
        words[word] |= from_first & to_last
        return
    words[word] |= from_first
    for word in range(word + 1, end):
        words[word] = ~<uint64_t>0
    words[end] |= to_last


cdef int chunk(
    const uint8_t *data, Py_ssize_t *at, Py_ssize_t length, bint runs, uint32_t count, uint64_t *words, Py_ssize_t room
) noexcept nogil:
    """One container into the words of its 65,536 numbers, `room` of which are there: 0, -1 cut short, -2 beyond `room`."""
    cdef Py_ssize_t i, n
    cdef uint32_t first, last
    if runs:
        if length - at[0] < 2:
            return -1
        n = two(data + at[0])
        at[0] += 2
        if length - at[0] < 4 * n:
            return -1
        for i in range(n):
            first = two(data + at[0] + 4 * i)
            last = first + two(data + at[0] + 4 * i + 2)
            if last > 65535:
                return -1
            if <Py_ssize_t>(last >> 6) >= room:
                return -2
            set_range(words, first, last)
        at[0] += 4 * n
    elif count > ARRAY_MAX:
        if length - at[0] < CHUNK_BYTES:
            return -1
        n = room if room < CHUNK_WORDS else CHUNK_WORDS
        memcpy(words, data + at[0], 8 * n)
        for i in range(8 * n, CHUNK_BYTES):
            if data[at[0] + i]:
                return -2
        at[0] += CHUNK_BYTES
    else:
        if length - at[0] < 2 * <Py_ssize_t>count:
            return -1
        for i in range(count):
            first = two(data + at[0] + 2 * i)
            if <Py_ssize_t>(first >> 6) >= room:
                return -2
            words[first >> 6] |= <uint64_t>1 << (first & 63)
        at[0] += 2 * <Py_ssize_t>count
    return 0


cdef int decode(const uint8_t *data, Py_ssize_t length, uint64_t *out, Py_ssize_t words) noexcept nogil:
    """0, or -1: cut short or no such form, -2: a number beyond `words`."""
    cdef Py_ssize_t at = 4, containers, heads, i, flags = 0, room
    cdef uint32_t cookie
    cdef uint16_t key
    cdef bint runs
    cdef int done
    memset(out, 0, 8 * words)
    if length < 4:
        return -1
    memcpy(&cookie, data, 4)
    if cookie & 0xFFFF == WITH_RUNS:
        containers = (cookie >> 16) + 1
        flags = at
        at += (containers + 7) >> 3
    elif cookie == NO_RUNS:
        if length < 8:
            return -1
        memcpy(&cookie, data + 4, 4)
        if cookie > 65536:
            return -1
        containers = cookie
        at = 8
    else:
        return -1
    heads = at
    at += 4 * containers
    if flags == 0 or containers >= OFFSETS_FROM:
        at += 4 * containers
    if length < at:
        return -1
    for i in range(containers):
        key = two(data + heads + 4 * i)
        room = words - <Py_ssize_t>key * CHUNK_WORDS
        if room <= 0:
            return -2
        runs = flags != 0 and (data[flags + (i >> 3)] >> (i & 7)) & 1
        done = chunk(data, &at, length, runs, <uint32_t>two(data + heads + 4 * i + 2) + 1,
                     out + <Py_ssize_t>key * CHUNK_WORDS, room)
        if done:
            return done
    return 0


def read(const uint8_t[::1] portable, uint64_t[::1] out):
    cdef int done = -1
    if portable.shape[0] and out.shape[0]:
        with nogil:
            done = decode(&portable[0], portable.shape[0], &out[0], out.shape[0])
    if done == -1:
        raise ValueError("no roaring bitmap in its portable form")
    if done == -2:
        raise ValueError(f"a number beyond the {64 * out.shape[0]} that {out.shape[0]} words hold")


def count(const uint64_t[::1] words):
    return count_words(&words[0], words.shape[0]) if words.shape[0] else 0


cdef Py_ssize_t write_numbers(const uint64_t *words, Py_ssize_t length, uint32_t *out) noexcept nogil:
    """All set bits, ascending; `out` has room for as many as are set."""
    cdef Py_ssize_t word, n = 0
    cdef uint64_t bits
    for word in range(length):
        bits = words[word]
        while bits:
            out[n] = <uint32_t>(word * 64 + lowest_bit(bits))
            n += 1
            bits &= bits - 1
    return n


def numbers(const uint64_t[::1] words):
    out = np.empty(count(words), dtype=np.uint32)
    cdef uint32_t[::1] view = out
    if view.shape[0]:
        with nogil:
            write_numbers(&words[0], words.shape[0], &view[0])
    return out


def write(const uint32_t[::1] numbers, uint64_t[::1] out):
    cdef Py_ssize_t i
    for i in range(numbers.shape[0]):
        if <Py_ssize_t>(numbers[i] >> 6) >= out.shape[0]:
            raise ValueError(f"{numbers[i]} is beyond the {64 * out.shape[0]} that {out.shape[0]} words hold")
    with nogil:
        for i in range(out.shape[0]):
            out[i] = 0
        for i in range(numbers.shape[0]):
            out[numbers[i] >> 6] |= <uint64_t>1 << (numbers[i] & 63)
