# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One publisher and many subscribers over nonblocking TCP, in one thread.

Owns the schedule, the window, and the check of every byte delivered. It must not know which server answers: a protocol
comes in as the constant bytes around a payload (publish and delivery), which is all that RESP, NATS and MQTT QoS 0 put
there once the payload size is fixed. Connections come in subscribed, with nothing left unread.

A payload is sequence (8 bytes), intended moment of sending (8), then a fixed pattern.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy, memmove

import os

import numpy as np

from muster_server.pyext.histogram cimport Histogram

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    enum: CLOCK_MONOTONIC

cdef extern from "sys/socket.h" nogil:
    ssize_t send(int fd, const void *data, size_t length, int flags)
    ssize_t recv(int fd, void *data, size_t length, int flags)
    enum: MSG_DONTWAIT
    enum: MSG_NOSIGNAL

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data:
        uint32_t u32
    struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int count, int timeout_ms)
    enum: EPOLL_CTL_ADD
    enum: EPOLL_CTL_DEL
    enum: EPOLLIN
    enum: EPOLLOUT
    enum: EPOLLET
    enum: EPOLL_CLOEXEC

cdef extern from "unistd.h" nogil:
    int close(int fd)

cdef enum:
    STAMP_BYTES = 16            # sequence and intended moment
    CARRY_BYTES = 8192          # what a read left unfinished: less than a frame, or a line of the server
    READ_BYTES = 1 << 18        # one read of one subscriber
    OUT_BYTES = 4 << 20         # publishes the server has not taken yet
    EVENTS = 256
    STALL_NS = 1000000000       # nothing arrived for so long: the rest is lost


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef struct Subscriber:
    int fd
    bint open
    uint64_t expected       # next sequence
    int64_t delivered
    uint32_t carried
    uint8_t *carry


cdef struct Total:
    int64_t published
    int64_t deliveries
    int64_t skipped         # lost for certain: a later one came first
    int64_t duplicated
    int64_t corrupted
    int64_t strays          # of an earlier run that gave up on them
    int64_t refused         # error answers to the publisher
    int64_t closed          # connections the server ended
    int64_t blocked         # publishes that found the server not reading
    int64_t wall


cdef class Generator:
    cdef Subscriber *subscribers
    cdef Py_ssize_t count
    cdef int publisher
    cdef int epoll
    cdef bint lines
    cdef uint8_t *publish       # one whole publish, restamped for each
    cdef uint8_t *delivery      # one whole delivery, to compare with
    cdef uint8_t *out
    cdef uint8_t *read
    cdef size_t publish_bytes, publish_head, delivery_bytes, delivery_head, payload_bytes
    cdef size_t out_start, out_end
    cdef uint64_t next_sequence
    cdef int32_t[::1] arrived
    cdef int64_t[::1] intended

    def __cinit__(self, publisher, subscribers, publish, delivery, payload_bytes, *, lines=False):
        cdef const int32_t[::1] fds = subscribers
        cdef epoll_event event
        cdef Py_ssize_t i
        cdef bytes publish_prefix = publish[0], publish_suffix = publish[1]
        cdef bytes delivery_prefix = delivery[0], delivery_suffix = delivery[1]
        self.epoll = -1
        if payload_bytes < STAMP_BYTES + 1 or payload_bytes + len(delivery_prefix) > CARRY_BYTES // 2:
            raise ValueError(f"a payload holds {STAMP_BYTES + 1} to about {CARRY_BYTES // 2} bytes, not {payload_bytes}")
        if not delivery_prefix or fds.shape[0] == 0:
            raise ValueError("a delivery begins with something, and someone receives it")
        pattern = bytes((37 * k + 11) % 251 for k in range(payload_bytes))
        self.payload_bytes = payload_bytes
        self.publisher = publisher
        self.lines = lines
        self.publish_head, self.delivery_head = len(publish_prefix), len(delivery_prefix)
        self.publish_bytes = len(publish_prefix) + payload_bytes + len(publish_suffix)
        self.delivery_bytes = len(delivery_prefix) + payload_bytes + len(delivery_suffix)
        self.publish = <uint8_t *>malloc(self.publish_bytes)
        self.delivery = <uint8_t *>malloc(self.delivery_bytes)
        self.out = <uint8_t *>malloc(OUT_BYTES)
        self.read = <uint8_t *>malloc(CARRY_BYTES + READ_BYTES)
        self.subscribers = <Subscriber *>calloc(fds.shape[0], sizeof(Subscriber))
        if not (self.publish and self.delivery and self.out and self.read and self.subscribers):
            raise MemoryError
        self.count = fds.shape[0]
        frame = publish_prefix + pattern + publish_suffix
        memcpy(self.publish, <const uint8_t *>frame, self.publish_bytes)
        frame = delivery_prefix + pattern + delivery_suffix
        memcpy(self.delivery, <const uint8_t *>frame, self.delivery_bytes)
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll < 0:
            raise OSError(errno, os.strerror(errno))
        for i in range(self.count):
            self.subscribers[i].fd = fds[i]
            self.subscribers[i].open = True
            self.subscribers[i].carry = <uint8_t *>malloc(CARRY_BYTES)
            if not self.subscribers[i].carry:
                raise MemoryError
            event.events = EPOLLIN
            event.data.u32 = <uint32_t>i
            if epoll_ctl(self.epoll, EPOLL_CTL_ADD, fds[i], &event) < 0:
                raise OSError(errno, os.strerror(errno))
        event.events = EPOLLIN | EPOLLOUT | EPOLLET
        event.data.u32 = <uint32_t>self.count
        if epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.publisher, &event) < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.subscribers:
            for i in range(self.count):
                free(self.subscribers[i].carry)
        free(self.subscribers)
        free(self.publish)
        free(self.delivery)
        free(self.out)
        free(self.read)
        if self.epoll >= 0:
            close(self.epoll)

    cdef inline bint _append(self, int64_t due) noexcept nogil:
        """Puts the next publish into the buffer; False if there is no room for it."""
        if self.out_end + self.publish_bytes > OUT_BYTES:
            if self.out_end - self.out_start + self.publish_bytes > OUT_BYTES:
                return False
            memmove(self.out, self.out + self.out_start, self.out_end - self.out_start)
            self.out_end -= self.out_start
            self.out_start = 0
        cdef uint8_t *stamp = self.publish + self.publish_head
        cdef Py_ssize_t slot = <Py_ssize_t>(self.next_sequence & <uint64_t>(self.arrived.shape[0] - 1))
        memcpy(stamp, &self.next_sequence, 8)
        memcpy(stamp + 8, &due, 8)
        memcpy(self.out + self.out_end, self.publish, self.publish_bytes)
        self.out_end += self.publish_bytes
        self.arrived[slot] = 0
        self.intended[slot] = due
        self.next_sequence += 1
        return True

    cdef inline void _flush(self, Total *total) noexcept nogil:
        cdef ssize_t taken
        while self.out_start < self.out_end:
            taken = send(self.publisher, self.out + self.out_start, self.out_end - self.out_start, MSG_DONTWAIT | MSG_NOSIGNAL)
            if taken > 0:
                self.out_start += taken
            elif errno == EINTR:
                continue
            else:
                if errno != EAGAIN:
                    total.closed += 1
                    self.out_start = self.out_end
                break
        if self.out_start == self.out_end:
            self.out_start = self.out_end = 0

    cdef void _read_publisher(self, Total *total) noexcept nogil:
        cdef ssize_t length
        while True:
            length = recv(self.publisher, self.read, READ_BYTES, MSG_DONTWAIT)
            if length <= 0:
                if length == 0:
                    total.closed += 1
                return
            if self.read[0] == c"-":
                total.refused += 1
            elif self.lines and length >= 4 and memcmp(self.read, b"PING", 4) == 0:
                send(self.publisher, <const char *>b"PONG\r\n", 6, MSG_DONTWAIT | MSG_NOSIGNAL)

    cdef inline bint _deliver(
        self, Subscriber *to, const uint8_t *payload, uint64_t first, int64_t now, Total *total,
        Histogram latency, Histogram first_one, Histogram middle_one, Histogram last_one
    ) noexcept nogil:
        """Checks and counts one payload. False if its content is not what was sent."""
        cdef uint64_t sequence
        cdef int64_t due, took
        cdef Py_ssize_t mask = self.arrived.shape[0] - 1
        cdef int32_t copies
        memcpy(&sequence, payload, 8)
        memcpy(&due, payload + 8, 8)
        if sequence >= self.next_sequence:
            return False
        if memcmp(payload + STAMP_BYTES, self.delivery + self.delivery_head + STAMP_BYTES,
                  self.delivery_bytes - self.delivery_head - STAMP_BYTES) != 0:
            return False
        if sequence < first:
            total.strays += 1
            return True
        if sequence < to.expected:
            total.duplicated += 1
            return True
        if due != self.intended[<Py_ssize_t>sequence & mask]:
            return False
        while to.expected < sequence:   # lost on the way: nobody waits for them any more
            self.arrived[<Py_ssize_t>to.expected & mask] += 1
            to.expected += 1
            total.skipped += 1
        to.expected += 1
        to.delivered += 1
        total.deliveries += 1
        copies = self.arrived[<Py_ssize_t>sequence & mask] + 1
        self.arrived[<Py_ssize_t>sequence & mask] = copies
        if latency is not None:
            took = now - due
            if took < 0:
                took = 0
            latency.add(<uint64_t>took)
            if copies == 1:
                first_one.add(<uint64_t>took)
            if copies == (self.count + 1) // 2:
                middle_one.add(<uint64_t>took)
            if copies == self.count:
                last_one.add(<uint64_t>took)
        return True

    cdef void _close(self, Subscriber *one, Total *total) noexcept nogil:
        one.open = False
        total.closed += 1
        epoll_ctl(self.epoll, EPOLL_CTL_DEL, one.fd, NULL)

    cdef int64_t _read_subscriber(
        self, Subscriber *one, uint64_t first, Total *total,
        Histogram latency, Histogram first_one, Histogram middle_one, Histogram last_one
    ) noexcept nogil:
        """One read: every whole frame in it is checked, the rest is carried over. Returns the moment of arrival."""
        cdef uint8_t *at = self.read
        cdef uint8_t *end
        cdef uint8_t *line_end
        cdef ssize_t length
        cdef int64_t now
        memcpy(self.read, one.carry, one.carried)
        length = recv(one.fd, self.read + one.carried, READ_BYTES, MSG_DONTWAIT)
        now = now_ns()
        if length <= 0:
            if length == 0 or (errno != EAGAIN and errno != EINTR):
                self._close(one, total)
            return now
        end = self.read + one.carried + length
        while at < end:
            if self.lines and at[0] != self.delivery[0]:
                line_end = <uint8_t *>memchr(at, c"\n", end - at)
                if line_end == NULL:
                    break
                if line_end - at >= 4 and memcmp(at, b"PING", 4) == 0:
                    send(one.fd, <const char *>b"PONG\r\n", 6, MSG_DONTWAIT | MSG_NOSIGNAL)
                elif at[0] == c"-":
                    total.refused += 1
                at = line_end + 1
                continue
            if <size_t>(end - at) < self.delivery_bytes:
                break
            if (memcmp(at, self.delivery, self.delivery_head) != 0
                    or not self._deliver(one, at + self.delivery_head, first, now, total,
                                         latency, first_one, middle_one, last_one)):
                total.corrupted += 1
                self._close(one, total)     # nothing after it can be trusted
                return now
            at += self.delivery_bytes
        one.carried = <uint32_t>(end - at)
        if one.carried > CARRY_BYTES:
            total.corrupted += 1
            self._close(one, total)
            one.carried = 0
            return now
        memcpy(one.carry, at, one.carried)
        return now

    cdef Total _loop(
        self, int64_t interval, int64_t publishes, int64_t window, int64_t time_ns, int64_t grace_ns,
        Histogram latency, Histogram lateness, Histogram first_one, Histogram middle_one, Histogram last_one
    ) noexcept nogil:
        cdef Total total
        cdef epoll_event events[EVENTS]
        cdef uint64_t first = self.next_sequence, oldest = self.next_sequence
        cdef Py_ssize_t mask = self.arrived.shape[0] - 1, i
        cdef int64_t began, now, last_arrival, due, before
        cdef int ready, e, timeout
        cdef bint sending = True, blocked = False
        total = Total(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        for i in range(self.count):
            self.subscribers[i].expected = first
            self.subscribers[i].delivered = 0
        began = now_ns()
        last_arrival = began
        while True:
            now = now_ns()
            if sending:
                if interval:
                    while total.published < publishes:
                        due = began + total.published * interval
                        if due > now:
                            break
                        if not self._append(due):
                            blocked = True
                            total.blocked += 1
                            break
                        if not blocked:     # late because the server does not read is the server's latency, not ours
                            lateness.add(<uint64_t>(now - due))
                        total.published += 1
                    if self.out_end == self.out_start:
                        blocked = False
                    sending = total.published < publishes and now - began < time_ns + grace_ns
                else:
                    while <int64_t>(self.next_sequence - oldest) < window and self._append(now):
                        total.published += 1
                    sending = now - began < time_ns
                self._flush(&total)
            elif self.out_end != self.out_start:
                self._flush(&total)
            if not sending and total.deliveries + total.skipped >= total.published * self.count:
                break
            if now - last_arrival > STALL_NS and (not sending or not interval or total.closed):
                break
            if now - began > time_ns + grace_ns:
                break
            timeout = 5
            if interval and sending:
                due = began + total.published * interval - now
                timeout = 0 if due < 2000000 else <int>(due // 1000000) - 1
                if timeout > 5:
                    timeout = 5
            ready = epoll_wait(self.epoll, events, EVENTS, timeout)
            before = total.deliveries
            for e in range(ready):
                if events[e].data.u32 == <uint32_t>self.count:
                    self._read_publisher(&total)
                    self._flush(&total)
                    continue
                now = self._read_subscriber(
                    &self.subscribers[events[e].data.u32], first, &total, latency, first_one, middle_one, last_one)
                if interval and sending and total.published < publishes and began + total.published * interval <= now:
                    due = began + total.published * interval
                    if self._append(due):       # on time also between two reads
                        if not blocked:
                            lateness.add(<uint64_t>(now - due))
                        total.published += 1
                        self._flush(&total)
            if total.deliveries != before:
                last_arrival = now_ns()
            while oldest < self.next_sequence and self.arrived[<Py_ssize_t>oldest & mask] >= self.count:
                oldest += 1
        total.wall = last_arrival - began
        return total

    def saturate(self, *, window, seconds, grace=5.0):
        cdef int64_t window_c = window, time_ns = int(seconds * 1e9), grace_ns = int(grace * 1e9)
        cdef Total total
        if window < 1:
            raise ValueError("a window holds at least one publish")
        self._slots(window)
        with nogil:
            total = self._loop(0, 0, window_c, time_ns, grace_ns, None, None, None, None, None)
        return total

    def pace(self, *, publishes_per_second, seconds, latency, lateness, first, middle, last, grace=5.0):
        cdef Histogram latency_c = latency, lateness_c = lateness, first_c = first, middle_c = middle, last_c = last
        cdef int64_t interval = int(1e9 / publishes_per_second), publishes = int(publishes_per_second * seconds)
        cdef int64_t time_ns = int(seconds * 1e9), grace_ns = int(grace * 1e9)
        cdef Total total
        if latency_c is None or lateness_c is None or first_c is None or middle_c is None or last_c is None:
            raise TypeError("every histogram is needed")
        if publishes < 1:
            raise ValueError("a paced run has something to publish")
        self._slots(publishes)
        with nogil:
            total = self._loop(
                interval, publishes, publishes, time_ns, grace_ns, latency_c, lateness_c, first_c, middle_c, last_c)
        return total

    cdef _slots(self, outstanding):
        """One slot per publish that may be under way."""
        length = 1 << (outstanding - 1).bit_length()
        self.arrived = np.zeros(max(length, 2), dtype=np.int32)
        self.intended = np.zeros(max(length, 2), dtype=np.int64)
