# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Weights of a fleet's clients, over one NumPy array: the minute at which each client has its whole weight again.

Owns the formula of weight and punishment. It must not know a clock, a name, or the rule of a pick: the minute comes in,
clients are dense numbers. A weight falls by 0.001 x punishment a task and rises by 0.001 a minute up to 1, so
weight = 1 - 0.001 x (minutes until it is whole): one number a client says all, and a minute costs nothing.

Source: the formula of the fleet's design (docs/fleet.md), kept in the form of a generic cell rate algorithm.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

import numpy as np

cdef extern from "words.h":
    Py_ssize_t above "muster_above"(const int32_t *values, int32_t bound, uint64_t *out, Py_ssize_t length) noexcept nogil
    bint beyond "muster_beyond"(const uint32_t *numbers, Py_ssize_t length, uint32_t bound) noexcept nogil
    void raise_all "muster_raise"(
        int32_t *values, const uint32_t *numbers, Py_ssize_t length, int32_t now, int32_t cost, int32_t most
    ) noexcept nogil


# One minute of rest in units of `rested_at`: a weight is exact to a millionth.
cdef enum:
    MINUTE = 1000
    WHOLE = 1000 * MINUTE  # what the weight 1 is worth: 1,000 minutes of rest
    # Minutes after which `base` moves: (1,048,576 + 1,000) x 1,000 < 2**31.
    REBASE = 1048576

PUNISHMENT_MAX = 1000.0
CAPACITY_MAX = 1 << 26  # as a deck


def punishment(int64_t online, double picked_per_task, double tasks_per_minute):
    cdef double picked = picked_per_task * tasks_per_minute
    if online < 0 or not (picked_per_task >= 0.0 and tasks_per_minute >= 0.0):
        raise ValueError(f"averages and clients are 0 or more, not {online}, {picked_per_task}, {tasks_per_minute}")
    if online == 0:
        return 0.0
    if <double>online >= PUNISHMENT_MAX * picked:  # also when nothing was picked
        return PUNISHMENT_MAX
    return <double>online / picked


cdef class Weights:
    cdef readonly object rested_at
    cdef readonly int64_t base
    cdef readonly int64_t minute
    cdef int32_t[::1] view

    def __init__(self, capacity, minute, rested_at=None, base=None):
        if not 0 <= capacity <= CAPACITY_MAX:
            raise ValueError(f"capacity must be 0 to {CAPACITY_MAX}, not {capacity}")
        self.base = minute if base is None else base
        self.minute = self.base
        self.rested_at = np.zeros((capacity + 63) // 64 * 64, dtype=np.int32)
        self.view = self.rested_at
        if rested_at is not None:
            if len(rested_at) > len(self.rested_at):
                raise ValueError(f"{len(rested_at)} clients do not fit a capacity of {capacity}")
            self.rested_at[: len(rested_at)] = rested_at
        self.advance(minute)

    @property
    def now(self):
        return self._now()

    cdef int32_t _now(self) noexcept nogil:
        return <int32_t>((self.minute - self.base) * MINUTE)

    def advance(self, int64_t minute):
        if minute <= self.minute:
            return
        self.minute = minute
        if minute - self.base > REBASE:
            rested = np.maximum(self.rested_at.astype(np.int64) - (minute - self.base) * MINUTE, 0)
            self.rested_at[:] = rested
            self.base = minute

    def grow(self, capacity):
        words = (capacity + 63) // 64
        if words * 64 > len(self.rested_at):
            self.rested_at = np.concatenate([self.rested_at, np.zeros(words * 64 - len(self.rested_at), dtype=np.int32)])
            self.view = self.rested_at

    cdef _check(self, const uint32_t[::1] clients):
        if clients.shape[0] and beyond(&clients[0], clients.shape[0], <uint32_t>self.view.shape[0]):
            raise ValueError(f"client {max(clients)} is beyond the capacity of {self.view.shape[0]}")

    def punish(self, const uint32_t[::1] clients, double punishment):
        if not 0.0 <= punishment <= PUNISHMENT_MAX:
            raise ValueError(f"a punishment lies between 0 and {PUNISHMENT_MAX:g}, not {punishment}")
        self._check(clients)
        cdef int32_t now = self._now(), cost = <int32_t>(punishment * MINUTE + 0.5)
        if clients.shape[0] == 0:
            return
        with nogil:
            raise_all(&self.view[0], &clients[0], clients.shape[0], now, cost, now + WHOLE)

    def restore(self, const uint32_t[::1] clients):
        self._check(clients)
        cdef Py_ssize_t i
        with nogil:
            for i in range(clients.shape[0]):
                self.view[clients[i]] = 0

    cdef void _read(self, float[::1] out) noexcept nogil:
        cdef Py_ssize_t i
        cdef int32_t now = self._now(), owed
        for i in range(out.shape[0]):
            owed = self.view[i] - now
            out[i] = <float>(WHOLE - (owed if owed > 0 else 0)) * <float>1e-6

    def read(self, float[::1] out):
        if out.shape[0] > self.view.shape[0]:
            raise ValueError(f"{out.shape[0]} weights of {self.view.shape[0]} clients")
        with nogil:
            self._read(out)

    def of(self, Py_ssize_t client):
        if not 0 <= client < self.view.shape[0]:
            raise ValueError(f"client {client} is beyond the capacity of {self.view.shape[0]}")
        cdef int32_t owed = self.view[client] - self._now()
        return (WHOLE - max(owed, 0)) / <double>WHOLE

    def tired(self, double weight, uint64_t[::1] out):
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"a weight lies between 0 and 1, not {weight}")
        if out.shape[0] * 64 > self.view.shape[0]:
            raise ValueError(f"{out.shape[0] * 64} bits of {self.view.shape[0]} clients")
        cdef int32_t bound = self._now() + <int32_t>((1.0 - weight) * WHOLE + 0.5)
        cdef Py_ssize_t count = 0
        if out.shape[0] == 0:
            return 0
        with nogil:
            count = above(&self.view[0], bound, &out[0], out.shape[0])
        return count

    def mark_tired(self, const uint32_t[::1] clients, double weight, uint64_t[::1] out):
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"a weight lies between 0 and 1, not {weight}")
        self._check(clients)
        if clients.shape[0] and beyond(&clients[0], clients.shape[0], <uint32_t>(out.shape[0] * 64)):
            raise ValueError(f"client {max(clients)} is beyond {out.shape[0]} words")
        cdef int32_t bound = self._now() + <int32_t>((1.0 - weight) * WHOLE + 0.5)
        cdef Py_ssize_t i
        with nogil:
            for i in range(clients.shape[0]):
                if self.view[clients[i]] > bound:
                    out[clients[i] >> 6] |= <uint64_t>1 << (clients[i] & 63)

    def __repr__(self):
        return f"Weights({len(self.rested_at)} clients, minute {self.minute})"
