# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""A latency histogram over one NumPy array of counts, in the layout of HdrHistogram.

Owns the arithmetic of the buckets. It must not know a clock or a unit: values are whole numbers in whatever unit
`lowest` and `highest` were given in (microseconds by default). Everything that can be asked is derived from `counts`
alone, so merging is one addition and the array may be shared, stored or summed by others.

Source: http://hdrhistogram.org (bucket layout, percentile rule); checked against the package `hdrhistogram`.
"""

from libc.stdint cimport int64_t, uint64_t

import numpy as np


cdef extern from *:
    """
    static inline int muster_bit_length(unsigned long long value) { return 64 - __builtin_clzll(value | 1); }
    """
    int bit_length "muster_bit_length"(unsigned long long value) noexcept nogil


cdef class Histogram:
    def __init__(self, lowest=1, highest=3_600_000_000, digits=3):
        if not 1 <= digits <= 5:
            raise ValueError(f"digits must be 1 to 5, not {digits}")
        if lowest < 1 or highest < 2 * lowest or highest >= 1 << 62:
            raise ValueError(f"1 <= lowest, 2 * lowest <= highest < 2**62 must hold, not {lowest}, {highest}")
        cdef int sub_bucket_magnitude = bit_length(2 * 10 ** digits - 1)
        cdef int buckets = 1
        cdef uint64_t beyond
        self.lowest = lowest
        self.highest = highest
        self.digits = digits
        self.unit_magnitude = bit_length(lowest) - 1
        if self.unit_magnitude + sub_bucket_magnitude > 61:
            raise ValueError(f"lowest {lowest} leaves no room for {digits} digits")
        self.half_magnitude = sub_bucket_magnitude - 1
        self.sub_bucket_mask = ((<uint64_t>1 << sub_bucket_magnitude) - 1) << self.unit_magnitude
        beyond = <uint64_t>1 << (sub_bucket_magnitude + self.unit_magnitude)
        while beyond <= self.highest:
            beyond <<= 1
            buckets += 1
        self.counts = np.zeros((buckets + 1) << self.half_magnitude, dtype=np.int64)
        self.view = self.counts

    cdef Py_ssize_t index_of(self, uint64_t value) noexcept nogil:
        cdef int bucket = bit_length(value | self.sub_bucket_mask) - self.unit_magnitude - self.half_magnitude - 1
        cdef Py_ssize_t sub_bucket = <Py_ssize_t>(value >> (bucket + self.unit_magnitude))
        return (<Py_ssize_t>bucket << self.half_magnitude) + sub_bucket

    cdef uint64_t first_of(self, Py_ssize_t index) noexcept nogil:
        """The lowest value that falls on `index`."""
        cdef Py_ssize_t half = <Py_ssize_t>1 << self.half_magnitude
        cdef Py_ssize_t bucket = (index >> self.half_magnitude) - 1
        if bucket < 0:
            return <uint64_t>index << self.unit_magnitude
        return <uint64_t>((index & (half - 1)) + half) << (bucket + self.unit_magnitude)

    cdef uint64_t width_of(self, Py_ssize_t index) noexcept nogil:
        """How many values fall on `index`."""
        cdef Py_ssize_t bucket = (index >> self.half_magnitude) - 1
        return <uint64_t>1 << (self.unit_magnitude + (bucket if bucket > 0 else 0))

    cdef int add(self, uint64_t value) noexcept nogil:
        """Counts `value`; returns 1 if it lay beyond the array and was counted in the last place."""
        cdef Py_ssize_t index
        if value >> 62:
            self.view[self.view.shape[0] - 1] += 1
            return 1
        index = self.index_of(value)
        if index >= self.view.shape[0]:
            self.view[self.view.shape[0] - 1] += 1
            return 1
        self.view[index] += 1
        return 0

    cdef Py_ssize_t _add_all(self, const uint64_t[::1] values) noexcept nogil:
        cdef Py_ssize_t i, clamped = 0
        for i in range(values.shape[0]):
            clamped += self.add(values[i])
        return clamped

    def record(self, values):
        _check(values, np.uint64, "values")
        cdef const uint64_t[::1] batch = values
        cdef Py_ssize_t clamped
        with nogil:
            clamped = self._add_all(batch)
        return clamped

    def merge(self, other):
        if not isinstance(other, Histogram):
            raise TypeError(f"a Histogram is merged with a Histogram, not {type(other).__name__}")
        if (self.lowest, self.highest, self.digits) != (other.lowest, other.highest, other.digits):
            raise ValueError("histograms with other bounds or digits cannot be merged")
        self.counts += other.counts

    def clear(self):
        self.counts.fill(0)

    cdef void _percentiles(
        self, const double[::1] wanted, const int64_t[::1] order, uint64_t[::1] out, int64_t total
    ) noexcept nogil:
        cdef Py_ssize_t index = 0, k, last = self.view.shape[0] - 1
        cdef int64_t seen = self.view[0], target
        cdef double p
        for k in range(order.shape[0]):
            p = wanted[order[k]]
            target = <int64_t>(p * <double>total / 100.0 + 0.5)
            if target < 1:
                target = 1
            while seen < target and index < last:
                index += 1
                seen += self.view[index]
            out[order[k]] = self.first_of(index) if p == 0.0 else self.first_of(index) + self.width_of(index) - 1

    def percentiles(self, wanted):
        wanted = np.ascontiguousarray(wanted, dtype=np.float64)
        if wanted.ndim != 1:
            raise ValueError(f"percentiles are one row of numbers, not {wanted.ndim}-dimensional")
        if not np.all((wanted >= 0.0) & (wanted <= 100.0)):
            raise ValueError("percentiles lie between 0 and 100")
        out = np.zeros(len(wanted), dtype=np.uint64)
        cdef int64_t total = self.count
        if total == 0:
            return out
        cdef const double[::1] wanted_view = wanted
        cdef const int64_t[::1] order = np.argsort(wanted, kind="stable").astype(np.int64)
        cdef uint64_t[::1] out_view = out
        with nogil:
            self._percentiles(wanted_view, order, out_view, total)
        return out

    cdef double _sum(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef double total = 0.0
        for i in range(self.view.shape[0]):
            if self.view[i]:
                total += <double>self.view[i] * <double>(self.first_of(i) + (self.width_of(i) >> 1))
        return total

    @property
    def count(self):
        return int(self.counts.sum())

    @property
    def mean(self):
        cdef int64_t total = self.count
        return self._sum() / <double>total if total else 0.0

    @property
    def max(self):
        used = np.flatnonzero(self.counts)
        if not len(used):
            return 0
        cdef Py_ssize_t index = used[len(used) - 1]
        return self.first_of(index) + self.width_of(index) - 1

    def __repr__(self):
        return f"Histogram({self.lowest}, {self.highest}, {self.digits}): {self.count} values, max {self.max}"


cdef _check(values, dtype, name):
    if not isinstance(values, np.ndarray) or values.dtype != dtype or values.ndim != 1:
        raise TypeError(f"{name} must be a one-dimensional array of {np.dtype(dtype)}")
    if not values.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous")
