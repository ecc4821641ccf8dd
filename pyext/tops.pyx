# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rankings put together from parts: tops of shards, windows of buckets, decay, and what two sorted lists share.

Owns arithmetic over arrays that others own. It must not know what an item is, nor a clock: items are numbers, ages come in.
Parts lie one after the other in one array; `bounds` says where each begins, and last where all end. Arrays that are not in
the order said give other numbers, never a read or write out of bounds.
"""

from libc.math cimport exp2
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy


cdef _check(Py_ssize_t items, Py_ssize_t scores, const int64_t[::1] bounds):
    cdef Py_ssize_t i
    if items != scores:
        raise ValueError(f"{items} items have {scores} scores")
    if bounds.shape[0] < 1 or bounds[0] != 0 or bounds[bounds.shape[0] - 1] != items:
        raise ValueError(f"bounds begin with 0 and end with the number of items, {items}")
    for i in range(1, bounds.shape[0]):
        if bounds[i] < bounds[i - 1]:
            raise ValueError("bounds never fall")


cdef int64_t *cursors(const int64_t[::1] bounds) noexcept nogil:
    """Where each part begins; NULL without memory."""
    cdef Py_ssize_t size = bounds.shape[0] * sizeof(int64_t)
    cdef int64_t *at = <int64_t *>malloc(size)
    if at != NULL:
        memcpy(at, &bounds[0], size)
    return at


cdef bint seen(uint64_t *table, uint64_t mask, uint64_t item) noexcept nogil:
    """Whether `item` is in the table, and puts it there. A place holds item + 1; 2**64 - 1 has the place beyond the mask."""
    cdef uint64_t place
    if item + 1 == 0:
        place = mask + 1
        if table[place]:
            return True
        table[place] = 1
        return False
    place = ((item * <uint64_t>0x9E3779B97F4A7C15) >> 20) & mask
    while table[place]:
        if table[place] == item + 1:
            return True
        place = (place + 1) & mask
    table[place] = item + 1
    return False


cdef Py_ssize_t _merge(
    const uint64_t[::1] items, const double[::1] scores, const int64_t[::1] bounds, uint64_t[::1] out_items,
    double[::1] out_scores,
) noexcept nogil:
    cdef Py_ssize_t n = 0, part, best, parts = bounds.shape[0] - 1
    cdef int64_t at
    cdef uint64_t room = 16
    cdef int64_t *cursor = cursors(bounds)
    while room < 2 * <uint64_t>out_items.shape[0]:
        room <<= 1
    cdef uint64_t *table = <uint64_t *>calloc(room + 1, sizeof(uint64_t))
    if cursor == NULL or table == NULL:
        n = -1
    while 0 <= n < out_items.shape[0]:
        best = -1
        for part in range(parts):
            at = cursor[part]
            if at < bounds[part + 1] and (
                best < 0
                or scores[at] > scores[cursor[best]]
                or (scores[at] == scores[cursor[best]] and items[at] > items[cursor[best]])
            ):
                best = part
        if best < 0:
            break
        at = cursor[best]
        cursor[best] += 1
        if not seen(table, room - 1, items[at]):
            out_items[n] = items[at]
            out_scores[n] = scores[at]
            n += 1
    free(cursor)
    free(table)
    return n


def merge(
    const uint64_t[::1] items,
    const double[::1] scores,
    const int64_t[::1] bounds,
    uint64_t[::1] out_items,
    double[::1] out_scores,
):
    _check(items.shape[0], scores.shape[0], bounds)
    if out_items.shape[0] != out_scores.shape[0]:
        raise ValueError(f"room for {out_items.shape[0]} items and {out_scores.shape[0]} scores")
    cdef Py_ssize_t n
    with nogil:
        n = _merge(items, scores, bounds, out_items, out_scores)
    if n < 0:
        raise MemoryError
    return n


cdef Py_ssize_t _sums(
    const uint64_t[::1] items, const double[::1] scores, const int64_t[::1] bounds, const double[::1] factors,
    uint64_t[::1] out_items, double[::1] out_scores,
) noexcept nogil:
    cdef Py_ssize_t n = 0, part, parts = bounds.shape[0] - 1
    cdef int64_t left = bounds[parts]
    cdef uint64_t lowest
    cdef bint found
    cdef double total
    cdef int64_t *cursor = cursors(bounds)
    if cursor == NULL:
        return -1
    while left:
        found = False
        lowest = 0
        for part in range(parts):
            if cursor[part] < bounds[part + 1] and (not found or items[cursor[part]] < lowest):
                lowest = items[cursor[part]]
                found = True
        total = 0.0
        for part in range(parts):
            while cursor[part] < bounds[part + 1] and items[cursor[part]] == lowest:
                total += factors[part] * scores[cursor[part]]
                cursor[part] += 1
                left -= 1
        out_items[n] = lowest
        out_scores[n] = total
        n += 1
    free(cursor)
    return n


def sums(
    const uint64_t[::1] items,
    const double[::1] scores,
    const int64_t[::1] bounds,
    const double[::1] factors,
    uint64_t[::1] out_items,
    double[::1] out_scores,
):
    _check(items.shape[0], scores.shape[0], bounds)
    if factors.shape[0] != bounds.shape[0] - 1:
        raise ValueError(f"{bounds.shape[0] - 1} buckets have {factors.shape[0]} factors")
    if out_items.shape[0] < items.shape[0] or out_scores.shape[0] < items.shape[0]:
        raise ValueError(f"room for {out_items.shape[0]} items and {out_scores.shape[0]} scores, not {items.shape[0]}")
    cdef Py_ssize_t n
    with nogil:
        n = _sums(items, scores, bounds, factors, out_items, out_scores)
    if n < 0:
        raise MemoryError
    return n


def decay(const double[::1] scores, const double[::1] ages, double half_life, double[::1] out):
    cdef Py_ssize_t i
    if not scores.shape[0] == ages.shape[0] == out.shape[0]:
        raise ValueError(f"{scores.shape[0]} scores, {ages.shape[0]} ages and room for {out.shape[0]}")
    if not half_life > 0.0:
        raise ValueError(f"half_life must be above 0, not {half_life}")
    with nogil:
        for i in range(scores.shape[0]):
            out[i] = scores[i] * exp2(-ages[i] / half_life)


cdef Py_ssize_t ahead(const uint64_t[::1] numbers, Py_ssize_t at, uint64_t wanted) noexcept nogil:
    """The first place from `at` on whose number is `wanted` or more: steps that double, then halves."""
    cdef Py_ssize_t step = 1, low = at, high = at, middle
    while high < numbers.shape[0] and numbers[high] < wanted:
        low = high + 1
        high += step
        step <<= 1
    high = high if high < numbers.shape[0] else numbers.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def intersect(const uint64_t[::1] one, const uint64_t[::1] other, uint64_t[::1] out):
    cdef Py_ssize_t i = 0, j = 0, n = 0
    if out.shape[0] < min(one.shape[0], other.shape[0]):
        raise ValueError(f"room for {out.shape[0]} of up to {min(one.shape[0], other.shape[0])} numbers")
    with nogil:
        while i < one.shape[0] and j < other.shape[0]:
            if one[i] == other[j]:
                out[n] = one[i]
                n += 1
                i += 1
                j += 1
            elif one[i] < other[j]:
                i = ahead(one, i, other[j])
            else:
                j = ahead(other, j, one[i])
    return n
