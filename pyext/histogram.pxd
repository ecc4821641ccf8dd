# What another compiled module needs to record without the GIL, one value at a time.
from libc.stdint cimport int64_t, uint64_t

cdef class Histogram:
    cdef readonly uint64_t lowest
    cdef readonly uint64_t highest
    cdef readonly int digits
    cdef readonly object counts
    cdef int64_t[::1] view
    cdef int unit_magnitude
    cdef int half_magnitude
    cdef uint64_t sub_bucket_mask

    cdef int add(self, uint64_t value) noexcept nogil
    cdef Py_ssize_t index_of(self, uint64_t value) noexcept nogil
    cdef uint64_t first_of(self, Py_ssize_t index) noexcept nogil
    cdef uint64_t width_of(self, Py_ssize_t index) noexcept nogil
    cdef Py_ssize_t _add_all(self, const uint64_t[::1] values) noexcept nogil
    cdef void _percentiles(
        self, const double[::1] wanted, const int64_t[::1] order, uint64_t[::1] out, int64_t total
    ) noexcept nogil
    cdef double _sum(self) noexcept nogil
