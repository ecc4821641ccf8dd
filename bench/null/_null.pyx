# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Bare loops over libc: what any program on this machine has to pay.

Owns no socket: descriptors, addresses and buffers come in, figures go out. Must not know a line of Muster's code.
Every loop runs without the GIL, is bounded in time, and reads its own thread's CPU clock.
Addresses are the 32 bits of an IPv4 address and a port, both in host order.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import os

import numpy as np

cdef extern from "time.h" nogil:
    ctypedef int clockid_t
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(clockid_t clock, timespec *now)
    enum: CLOCK_MONOTONIC
    enum: CLOCK_THREAD_CPUTIME_ID

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "netinet/in.h" nogil:
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        uint16_t sin_family
        uint16_t sin_port
        in_addr sin_addr
    uint32_t htonl(uint32_t host)
    uint16_t htons(uint16_t host)

cdef extern from "sys/socket.h" nogil:
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    struct msghdr:
        void *msg_name
        socklen_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags)
    int recvmmsg(int fd, mmsghdr *messages, unsigned int count, int flags, timespec *timeout)
    ssize_t sendto(int fd, const void *data, size_t length, int flags, const sockaddr *to, socklen_t to_length)
    ssize_t recvfrom(int fd, void *data, size_t length, int flags, sockaddr *source, socklen_t *source_length)
    ssize_t recv(int fd, void *data, size_t length, int flags)
    cmsghdr *CMSG_FIRSTHDR(msghdr *header)
    cmsghdr *CMSG_NXTHDR(msghdr *header, cmsghdr *previous)
    uint8_t *CMSG_DATA(cmsghdr *control)
    size_t CMSG_SPACE(size_t length)
    size_t CMSG_LEN(size_t length)
    enum: AF_INET
    enum: MSG_DONTWAIT
    enum: MSG_TRUNC

cdef extern from "poll.h" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int ppoll(pollfd *descriptors, unsigned long count, const timespec *timeout, const void *mask)
    enum: POLLIN

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
    enum: EPOLLIN
    enum: EPOLL_CLOEXEC

cdef extern from "sys/syscall.h" nogil:
    enum: SYS_getppid

cdef extern from "unistd.h" nogil:
    long syscall(long number)
    int close(int fd)

cdef extern from *:
    """
    #define MUSTER_SOL_UDP 17
    #define MUSTER_UDP_SEGMENT 103
    #define MUSTER_UDP_GRO 104
    """
    enum: SOL_UDP "MUSTER_SOL_UDP"
    enum: UDP_SEGMENT "MUSTER_UDP_SEGMENT"
    enum: UDP_GRO "MUSTER_UDP_GRO"

cdef enum:
    BATCH_MAX = 1024        # the kernel's own limit for one call (UIO_MAXIOV)
    DATAGRAM_MAX = 65507
    SEGMENTS_MAX = 128      # UDP_MAX_SEGMENTS of current kernels
    CONTROL_BYTES = 64
    EVENTS = 256
    # First byte of a datagram in a chain of relays.
    DATA = 1
    ACK = 2
    STOP = 3
    HEADER = 16             # kind, three unused bytes, run, sequence
    ANSWER_BYTES = 64       # about what a sealed status has


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline int64_t cpu_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline void wait_readable(int fd, int64_t timeout_ns) noexcept nogil:
    cdef pollfd one
    cdef timespec limit
    if timeout_ns <= 0:
        return
    one.fd = fd
    one.events = POLLIN
    limit.tv_sec = timeout_ns // 1000000000
    limit.tv_nsec = timeout_ns % 1000000000
    ppoll(&one, 1, &limit, NULL)


cdef class _Batch:
    """Message headers, their buffers and addresses for one sendmmsg or recvmmsg, allocated once."""

    cdef mmsghdr *messages
    cdef iovec *vectors
    cdef sockaddr_in *names
    cdef uint8_t *data
    cdef uint8_t *control
    cdef unsigned int length
    cdef size_t buffer_bytes

    def __cinit__(self, unsigned int length, size_t buffer_bytes, bint shared):
        """`shared`: all messages point at one buffer (sending the same payload)."""
        cdef unsigned int i
        if not 1 <= length <= BATCH_MAX:
            raise ValueError(f"a batch holds 1 to {BATCH_MAX} messages, not {length}")
        self.length = length
        self.buffer_bytes = buffer_bytes
        self.messages = <mmsghdr *>calloc(length, sizeof(mmsghdr))
        self.vectors = <iovec *>calloc(length, sizeof(iovec))
        self.names = <sockaddr_in *>calloc(length, sizeof(sockaddr_in))
        self.control = <uint8_t *>calloc(length, CONTROL_BYTES)
        self.data = <uint8_t *>calloc(1 if shared else length, buffer_bytes)
        if not (self.messages and self.vectors and self.names and self.control and self.data):
            raise MemoryError
        for i in range(length):
            self.vectors[i].iov_base = self.data if shared else self.data + i * buffer_bytes
            self.vectors[i].iov_len = buffer_bytes
            self.messages[i].msg_hdr.msg_iov = &self.vectors[i]
            self.messages[i].msg_hdr.msg_iovlen = 1

    def __dealloc__(self):
        free(self.messages)
        free(self.vectors)
        free(self.names)
        free(self.control)
        free(self.data)

    cdef void segment(self, uint16_t size) noexcept nogil:
        """Makes every message a super-packet that the kernel cuts into datagrams of `size` bytes."""
        cdef unsigned int i
        cdef cmsghdr *control
        for i in range(self.length):
            self.messages[i].msg_hdr.msg_control = self.control + i * CONTROL_BYTES
            self.messages[i].msg_hdr.msg_controllen = CMSG_SPACE(sizeof(uint16_t))
            control = CMSG_FIRSTHDR(&self.messages[i].msg_hdr)
            control.cmsg_level = SOL_UDP
            control.cmsg_type = UDP_SEGMENT
            control.cmsg_len = CMSG_LEN(sizeof(uint16_t))
            (<uint16_t *>CMSG_DATA(control))[0] = size

    cdef inline int receive(self, int fd, bint gro, int flags) noexcept nogil:
        cdef unsigned int i
        if gro:
            for i in range(self.length):
                self.messages[i].msg_hdr.msg_control = self.control + i * CONTROL_BYTES
                self.messages[i].msg_hdr.msg_controllen = CONTROL_BYTES
        return recvmmsg(fd, self.messages, self.length, flags, NULL)

    cdef inline unsigned int packets_in(self, unsigned int i, bint gro) noexcept nogil:
        """How many datagrams message `i` holds: GRO joins several into one."""
        cdef cmsghdr *control
        cdef int size
        if not gro:
            return 1
        control = CMSG_FIRSTHDR(&self.messages[i].msg_hdr)
        while control != NULL:
            if control.cmsg_level == SOL_UDP and control.cmsg_type == UDP_GRO:
                size = (<int *>CMSG_DATA(control))[0]
                if size > 0:
                    return (self.messages[i].msg_len + size - 1) // size
            control = CMSG_NXTHDR(&self.messages[i].msg_hdr, control)
        return 1


cdef class _Destinations:
    """Socket addresses in the kernel's form."""

    cdef sockaddr_in *names
    cdef Py_ssize_t length

    def __cinit__(self, addresses, ports):
        cdef const uint32_t[::1] address_view = _array(addresses, np.uint32, "addresses")
        cdef const uint16_t[::1] port_view = _array(ports, np.uint16, "ports")
        cdef Py_ssize_t i
        if address_view.shape[0] != port_view.shape[0] or address_view.shape[0] == 0:
            raise ValueError("there must be as many ports as addresses, and at least one")
        self.length = address_view.shape[0]
        self.names = <sockaddr_in *>calloc(self.length, sizeof(sockaddr_in))
        if not self.names:
            raise MemoryError
        for i in range(self.length):
            self.names[i].sin_family = AF_INET
            self.names[i].sin_addr.s_addr = htonl(address_view[i])
            self.names[i].sin_port = htons(port_view[i])

    def __dealloc__(self):
        free(self.names)


cdef _array(values, dtype, name):
    if not isinstance(values, np.ndarray) or values.dtype != dtype or values.ndim != 1 or not values.flags.c_contiguous:
        raise TypeError(f"{name} must be a contiguous one-dimensional array of {np.dtype(dtype)}")
    return values


# ---------------------------------------------------------------- sending

cdef struct Sent:
    int64_t datagrams
    int64_t calls
    int64_t errors
    int64_t cpu
    int64_t wall


cdef Sent _send_loop(
    int fd, _Batch batch, _Destinations to, size_t bytes_each, int segments, bint plain, int64_t limit, int64_t time_ns
) noexcept nogil:
    cdef Sent sent
    cdef Py_ssize_t next_name = 0
    cdef unsigned int i, start, length = batch.length
    cdef int done
    cdef int64_t began = now_ns(), cpu_began = cpu_ns(), left
    memset(&sent, 0, sizeof(sent))
    for i in range(length):
        batch.vectors[i].iov_len = bytes_each
        batch.messages[i].msg_hdr.msg_namelen = sizeof(sockaddr_in)
    while sent.datagrams < limit and now_ns() - began < time_ns:
        left = (limit - sent.datagrams + segments - 1) // segments
        length = batch.length if left > batch.length else <unsigned int>left
        if plain:
            for i in range(length):
                if sendto(fd, batch.data, bytes_each, 0, <sockaddr *>&to.names[next_name], sizeof(sockaddr_in)) < 0:
                    sent.errors += 1
                else:
                    sent.datagrams += 1
                sent.calls += 1
                next_name += 1
                if next_name == to.length:
                    next_name = 0
            if sent.errors > 1000:
                break
            continue
        for i in range(length):
            batch.messages[i].msg_hdr.msg_name = &to.names[next_name]
            next_name += 1
            if next_name == to.length:
                next_name = 0
        start = 0
        while start < length:   # a short count is neither success nor failure: go on where it stopped
            done = sendmmsg(fd, &batch.messages[start], length - start, 0)
            sent.calls += 1
            if done > 0:
                sent.datagrams += <int64_t>done * segments
                start += done
            elif errno != EINTR:
                sent.errors += 1
                start += 1
        if sent.errors > 1000:
            break
    sent.wall = now_ns() - began
    sent.cpu = cpu_ns() - cpu_began
    return sent


def send(fd, addresses, ports, size, *, batch=64, segments=1, plain=False, count=None, seconds=1.0):
    cdef _Destinations to = _Destinations(addresses, ports)
    cdef int descriptor = fd, segments_c = segments
    cdef bint plain_c = plain
    cdef size_t bytes_each = size * segments
    cdef int64_t limit = 1 << 62 if count is None else count, time_ns = int(seconds * 1e9)
    cdef Sent sent
    if not 1 <= size or not 1 <= segments <= SEGMENTS_MAX or size * segments > DATAGRAM_MAX:
        raise ValueError(f"{segments} segments of {size} bytes do not fit one super-packet")
    if plain and segments != 1:
        raise ValueError("sendto sends no segments")
    cdef _Batch messages = _Batch(batch, bytes_each, True)
    if segments > 1:
        messages.segment(size)
    with nogil:
        sent = _send_loop(descriptor, messages, to, bytes_each, segments_c, plain_c, limit, time_ns)
    return sent.datagrams, sent.calls, sent.errors, sent.cpu, sent.wall


# ---------------------------------------------------------------- receiving

cdef struct Got:
    int64_t datagrams
    int64_t messages
    int64_t payload_bytes
    int64_t truncated
    int64_t cpu
    int64_t wall


cdef Got _drain_loop(int fd, _Batch batch, bint gro, int64_t limit, int64_t time_ns, bint wait) noexcept nogil:
    cdef Got got
    cdef int received, i
    cdef int64_t began = now_ns(), cpu_began = cpu_ns(), left
    memset(&got, 0, sizeof(got))
    while got.datagrams < limit:
        received = batch.receive(fd, gro, MSG_DONTWAIT)
        if received <= 0:
            left = time_ns - (now_ns() - began)
            if not wait or left <= 0:
                break
            wait_readable(fd, left)
            continue
        for i in range(received):
            got.datagrams += batch.packets_in(i, gro)
            got.payload_bytes += batch.messages[i].msg_len
            if batch.messages[i].msg_hdr.msg_flags & MSG_TRUNC:
                got.truncated += 1
        got.messages += received
        if wait and now_ns() - began >= time_ns:
            break
    got.wall = now_ns() - began
    got.cpu = cpu_ns() - cpu_began
    return got


def drain(fd, *, batch=None, gro=False, count=None, seconds=1.0, wait=False):
    cdef int descriptor = fd
    cdef bint gro_c = gro, wait_c = wait
    cdef int64_t limit = 1 << 62 if count is None else count, time_ns = int(seconds * 1e9)
    cdef _Batch messages = _Batch((16 if gro else 64) if batch is None else batch, 65536 if gro else 2048, False)
    cdef Got got
    with nogil:
        got = _drain_loop(descriptor, messages, gro_c, limit, time_ns, wait_c)
    return got.datagrams, got.messages, got.payload_bytes, got.truncated, got.cpu, got.wall


cdef Got _receive_loop(
    int epoll, const int32_t[::1] fds, int64_t[::1] each, _Batch batch, bint gro, int32_t *stop, int64_t time_ns
) noexcept nogil:
    """Drains many sockets until `stop` is set and they are quiet, or the time is over."""
    cdef Got got
    cdef epoll_event events[EVENTS]
    cdef int ready, received, e, i
    cdef uint32_t which
    cdef unsigned int packets
    cdef int64_t began = now_ns(), cpu_began = cpu_ns()
    memset(&got, 0, sizeof(got))
    while now_ns() - began < time_ns:
        ready = epoll_wait(epoll, events, EVENTS, 5)
        if ready <= 0:
            if stop[0]:
                break
            continue
        for e in range(ready):
            which = events[e].data.u32
            received = batch.receive(fds[which], gro, MSG_DONTWAIT)
            for i in range(received):
                packets = batch.packets_in(i, gro)
                got.datagrams += packets
                each[which] += packets
                got.payload_bytes += batch.messages[i].msg_len
                if batch.messages[i].msg_hdr.msg_flags & MSG_TRUNC:
                    got.truncated += 1
            if received > 0:
                got.messages += received
    got.wall = now_ns() - began
    got.cpu = cpu_ns() - cpu_began
    return got


cdef int _watch(int epoll, const int32_t[::1] fds) except -1:
    cdef epoll_event event
    cdef Py_ssize_t i
    for i in range(fds.shape[0]):
        event.events = EPOLLIN
        event.data.u32 = <uint32_t>i
        if epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) < 0:
            raise OSError(errno, os.strerror(errno))
    return 0


def receive(fds, each, stop, *, batch=None, gro=False, seconds=10.0):
    cdef const int32_t[::1] descriptors = _array(fds, np.int32, "fds")
    cdef int64_t[::1] each_view = _array(each, np.int64, "each")
    cdef int32_t[::1] stop_view = _array(stop, np.int32, "stop")
    cdef bint gro_c = gro
    cdef int64_t time_ns = int(seconds * 1e9)
    cdef Got got
    if each_view.shape[0] != descriptors.shape[0] or stop_view.shape[0] != 1:
        raise ValueError("there must be one count per descriptor and one stop flag")
    cdef _Batch messages = _Batch((16 if gro else 64) if batch is None else batch, 65536 if gro else 2048, False)
    cdef int epoll = epoll_create1(EPOLL_CLOEXEC)
    if epoll < 0:
        raise OSError(errno, os.strerror(errno))
    try:
        _watch(epoll, descriptors)
        with nogil:
            got = _receive_loop(epoll, descriptors, each_view, messages, gro_c, &stop_view[0], time_ns)
    finally:
        close(epoll)
    return got.datagrams, got.messages, got.payload_bytes, got.truncated, got.cpu, got.wall


# ---------------------------------------------------------------- echo

cdef int64_t _echo_loop(int fd, int64_t time_ns) noexcept nogil:
    cdef uint8_t buffer[2048]
    cdef sockaddr_in source
    cdef socklen_t source_length
    cdef ssize_t length
    cdef int64_t echoed = 0, began = now_ns()
    while now_ns() - began < time_ns:
        source_length = sizeof(source)
        length = recvfrom(fd, buffer, sizeof(buffer), 0, <sockaddr *>&source, &source_length)
        if length == 0:
            break
        if length > 0 and sendto(fd, buffer, length, 0, <sockaddr *>&source, source_length) == length:
            echoed += 1
    return echoed


def echo(fd, *, seconds=10.0):
    cdef int descriptor = fd
    cdef int64_t time_ns = int(seconds * 1e9), echoed
    with nogil:
        echoed = _echo_loop(descriptor, time_ns)
    return echoed


cdef int64_t _echo_client_loop(
    int fd, uint8_t *buffer, size_t size, int64_t interval, int64_t patience,
    uint64_t[::1] latency, uint64_t[::1] lateness, uint8_t[::1] seen
) noexcept nogil:
    """Sends on a fixed schedule; each answer counts from the moment its question was due. Returns the answers."""
    cdef int64_t count = latency.shape[0], next_send = 0, answered = 0
    cdef int64_t began = now_ns() + 1000000, now, due, last = began + count * interval
    cdef uint64_t sequence
    cdef ssize_t length
    while answered < count:
        now = now_ns()
        while next_send < count and began + next_send * interval <= now:
            (<uint64_t *>buffer)[0] = <uint64_t>next_send
            lateness[next_send] = <uint64_t>(now - began - next_send * interval)
            sendto(fd, buffer, size, 0, NULL, 0)
            next_send += 1
            now = now_ns()
        length = recv(fd, buffer, 2048, MSG_DONTWAIT)
        if length >= 8:
            now = now_ns()
            sequence = (<uint64_t *>buffer)[0]
            if sequence < <uint64_t>next_send and not seen[sequence]:
                seen[sequence] = 1
                latency[answered] = <uint64_t>(now - began - <int64_t>sequence * interval)
                answered += 1
            continue
        if now > last + patience:
            break
        due = began + next_send * interval if next_send < count else last + patience
        if due - now > 200000:   # the rest of the wait is spun, to be on time
            wait_readable(fd, due - now - 100000)
    return answered


def echo_client(fd, size, rate, count, *, patience=0.2):
    if not 8 <= size <= 2048:
        raise ValueError("an echo datagram holds 8 to 2048 bytes")
    cdef int descriptor = fd
    cdef size_t size_c = size
    cdef int64_t interval = int(1e9 / rate), patience_ns = int(patience * 1e9), answered
    latency, lateness = np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
    cdef uint64_t[::1] latency_view = latency
    cdef uint64_t[::1] lateness_view = lateness
    cdef uint8_t[::1] seen = np.zeros(count, dtype=np.uint8)
    cdef uint8_t buffer[2048]
    memset(buffer, 0, sizeof(buffer))
    with nogil:
        answered = _echo_client_loop(
            descriptor, buffer, size_c, interval, patience_ns, latency_view, lateness_view, seen)
    return latency[:answered], lateness


# ---------------------------------------------------------------- yardsticks

cdef double _getppid_loop(int64_t count) noexcept nogil:
    cdef int64_t i, began = now_ns()
    for i in range(count):
        syscall(SYS_getppid)
    return <double>(now_ns() - began) / <double>count


cdef double _empty_recv_loop(int fd, int64_t count) noexcept nogil:
    cdef uint8_t byte
    cdef int64_t i, began = now_ns()
    for i in range(count):
        recv(fd, &byte, 1, MSG_DONTWAIT)
    return <double>(now_ns() - began) / <double>count


cdef double _epoll_loop(int epoll, int64_t count) noexcept nogil:
    cdef epoll_event event
    cdef int64_t i, began = now_ns()
    for i in range(count):
        epoll_wait(epoll, &event, 1, 0)
    return <double>(now_ns() - began) / <double>count


def getppid_ns(count=200_000):
    cdef int64_t count_c = count
    cdef double each
    with nogil:
        each = _getppid_loop(count_c)
    return each


def empty_recv_ns(fd, count=200_000):
    cdef int descriptor = fd
    cdef int64_t count_c = count
    cdef double each
    with nogil:
        each = _empty_recv_loop(descriptor, count_c)
    return each


def epoll_ns(fd, count=200_000):
    cdef int64_t count_c = count
    cdef double each
    cdef int epoll = epoll_create1(EPOLL_CLOEXEC)
    if epoll < 0:
        raise OSError(errno, os.strerror(errno))
    try:
        _watch(epoll, np.array([fd], dtype=np.int32))
        with nogil:
            each = _epoll_loop(epoll, count_c)
    finally:
        close(epoll)
    return each


# ---------------------------------------------------------------- relays

cdef struct Relayed:
    int64_t received
    int64_t sent
    int64_t acks_sent
    int64_t acks_received
    int64_t errors
    int64_t cpu
    int64_t wall


cdef Relayed _relay_loop(
    int fd, _Batch batch, _Destinations to, uint8_t *ack, size_t ack_bytes, int ack_every, int64_t time_ns
) noexcept nogil:
    """Blocks for a datagram, passes it to every destination, answers its source with one acknowledgement per batch."""
    cdef Relayed total
    cdef sockaddr_in source
    cdef socklen_t source_length
    cdef ssize_t length
    cdef Py_ssize_t next_name
    cdef unsigned int i, start, filled
    cdef int done, unacknowledged = 0
    cdef int64_t began = now_ns(), cpu_began = cpu_ns()
    memset(&total, 0, sizeof(total))
    while now_ns() - began < time_ns:
        source_length = sizeof(source)
        length = recvfrom(fd, batch.data, batch.buffer_bytes, 0, <sockaddr *>&source, &source_length)
        if length < HEADER:
            continue
        if batch.data[0] == ACK:
            total.acks_received += 1
            continue
        if batch.data[0] == STOP:
            break
        total.received += 1
        if to.length == 1:
            if sendto(fd, batch.data, length, 0, <sockaddr *>&to.names[0], sizeof(sockaddr_in)) == length:
                total.sent += 1
            else:
                total.errors += 1
        else:
            next_name = 0
            while next_name < to.length:
                filled = 0
                while filled < batch.length and next_name < to.length:
                    batch.vectors[filled].iov_len = length
                    batch.messages[filled].msg_hdr.msg_name = &to.names[next_name]
                    batch.messages[filled].msg_hdr.msg_namelen = sizeof(sockaddr_in)
                    filled += 1
                    next_name += 1
                start = 0
                while start < filled:
                    done = sendmmsg(fd, &batch.messages[start], filled - start, 0)
                    if done > 0:
                        total.sent += done
                        start += done
                    elif errno != EINTR:
                        total.errors += 1
                        start += 1
        unacknowledged += 1
        if ack_every and unacknowledged >= ack_every:
            unacknowledged = 0
            if sendto(fd, ack, ack_bytes, 0, <sockaddr *>&source, source_length) == <ssize_t>ack_bytes:
                total.acks_sent += 1
            else:
                total.errors += 1
    total.wall = now_ns() - began
    total.cpu = cpu_ns() - cpu_began
    return total


def relay(fd, addresses, ports, *, ack_every=1, ack_bytes=64, batch=64, seconds=10.0):
    cdef _Destinations to = _Destinations(addresses, ports)
    cdef _Batch messages = _Batch(batch, 2048, True)
    cdef int descriptor = fd, ack_every_c = ack_every
    cdef size_t ack_bytes_c = ack_bytes
    cdef int64_t time_ns = int(seconds * 1e9)
    cdef uint8_t ack[2048]
    cdef Relayed total
    if not HEADER <= ack_bytes <= 2048:
        raise ValueError(f"an acknowledgement holds {HEADER} to 2048 bytes")
    memset(ack, 0, sizeof(ack))
    ack[0] = ACK
    with nogil:
        total = _relay_loop(descriptor, messages, to, ack, ack_bytes_c, ack_every_c, time_ns)
    return total.received, total.sent, total.acks_sent, total.acks_received, total.errors, total.cpu, total.wall


cdef struct Driven:
    int64_t published
    int64_t deliveries
    int64_t strangers
    int64_t acks
    int64_t wall


cdef Driven _drive_loop(
    int fd, int epoll, const int32_t[::1] fds, sockaddr_in *to, uint8_t *frame, size_t size, _Batch batch,
    int64_t interval, int64_t window, int64_t publishes, int64_t time_ns,
    int32_t[::1] arrived, uint64_t[::1] latency, uint64_t[::1] lateness, int answer_every, int32_t[::1] unanswered
) noexcept nogil:
    """Publishes on a schedule (`interval` > 0) or with `window` in flight, counts what reaches the receivers and has each
    answer every `answer_every`-th.

    `arrived[sequence % len]` counts copies; a publish that UDP lost is given up after 50 ms without any arrival.
    """
    cdef Driven total
    cdef epoll_event events[EVENTS]
    cdef int64_t mask = arrived.shape[0] - 1, receivers = fds.shape[0], samples = latency.shape[0]
    cdef int64_t next_send = 0, oldest = 0, began, now, last_arrival, last_progress, due
    cdef uint64_t sequence
    cdef uint32_t run
    cdef int ready, received, e, i, timeout, receiver
    cdef uint8_t answer[ANSWER_BYTES]
    memset(&total, 0, sizeof(total))
    memset(answer, 0, sizeof(answer))
    answer[0] = ACK
    for i in range(<int>batch.length):
        batch.messages[i].msg_hdr.msg_name = &batch.names[i]
        batch.messages[i].msg_hdr.msg_namelen = sizeof(sockaddr_in)
    began = now_ns()
    run = <uint32_t>began   # what an earlier run left in the sockets is no delivery of this one
    last_arrival = last_progress = began
    (<uint32_t *>(frame + 4))[0] = run
    while True:
        now = now_ns()
        if interval:
            while next_send < publishes and began + next_send * interval <= now:
                lateness[next_send] = <uint64_t>(now - began - next_send * interval)
                (<uint64_t *>(frame + 8))[0] = <uint64_t>next_send
                arrived[next_send & mask] = 0
                sendto(fd, frame, size, 0, <sockaddr *>to, sizeof(sockaddr_in))
                next_send += 1
                now = now_ns()
        else:
            if now - began < time_ns and next_send < publishes:
                while next_send - oldest < window and next_send < publishes:
                    (<uint64_t *>(frame + 8))[0] = <uint64_t>next_send
                    arrived[next_send & mask] = 0
                    sendto(fd, frame, size, 0, <sockaddr *>to, sizeof(sockaddr_in))
                    next_send += 1
        if total.deliveries >= next_send * receivers and (next_send == publishes or (not interval and now - began >= time_ns)):
            break
        if now - last_progress > 50000000:
            oldest = next_send
            last_progress = now
            if next_send == publishes or now - began >= time_ns:
                break
        timeout = 0
        if interval and next_send < publishes:
            due = began + next_send * interval - now
            if due > 1500000:
                timeout = <int>((due - 500000) // 1000000)
        else:
            timeout = 5
        ready = epoll_wait(epoll, events, EVENTS, timeout)
        for e in range(ready):
            if events[e].data.u32 == <uint32_t>receivers:   # acknowledgements to the publisher
                received = batch.receive(fd, False, MSG_DONTWAIT)
                if received > 0:
                    total.acks += received
                continue
            receiver = events[e].data.u32
            received = batch.receive(fds[receiver], False, MSG_DONTWAIT)
            now = now_ns()
            for i in range(received):
                sequence = (<uint64_t *>(batch.data + i * batch.buffer_bytes + 8))[0]
                if (batch.messages[i].msg_len != size or sequence >= <uint64_t>next_send
                        or (<uint32_t *>(batch.data + i * batch.buffer_bytes + 4))[0] != run):
                    total.strangers += 1
                    continue
                if interval and total.deliveries < samples:
                    latency[total.deliveries] = <uint64_t>(now - began - <int64_t>sequence * interval)
                total.deliveries += 1
                last_arrival = last_progress = now
                arrived[sequence & mask] += 1
                unanswered[receiver] += 1
                if answer_every and unanswered[receiver] >= answer_every:
                    unanswered[receiver] = 0
                    sendto(fds[receiver], answer, ANSWER_BYTES, 0, <sockaddr *>&batch.names[i], sizeof(sockaddr_in))
            while oldest < next_send and arrived[oldest & mask] >= receivers:
                oldest += 1
    total.published = next_send
    total.wall = last_arrival - began
    return total


def drive(fd, fds, address, port, size, *, rate=None, window=64, count=None, seconds=1.0, answer_every=0):
    cdef const int32_t[::1] descriptors = _array(fds, np.int32, "fds")
    cdef _Destinations to = _Destinations(np.array([address], dtype=np.uint32), np.array([port], dtype=np.uint16))
    cdef int descriptor = fd
    cdef size_t size_c = size
    cdef int64_t interval = 0 if rate is None else int(1e9 / rate), window_c = window
    cdef int64_t publishes = (1 << 40 if rate is None else int(rate * seconds)) if count is None else count
    cdef int64_t time_ns = int(seconds * 1e9)
    cdef uint8_t frame[2048]
    cdef _Batch messages = _Batch(64, 2048, False)
    cdef Driven total
    cdef epoll_event event
    if not HEADER <= size <= 2048:
        raise ValueError(f"a relayed datagram holds {HEADER} to 2048 bytes")
    slots = 1 << (max(window, publishes if rate is not None else 1) - 1).bit_length()
    arrived = np.zeros(max(slots, 2), dtype=np.int32)
    latency = np.zeros(publishes * len(fds) if rate is not None else 0, dtype=np.uint64)
    lateness = np.zeros(publishes if rate is not None else 0, dtype=np.uint64)
    cdef int32_t[::1] arrived_view = arrived
    cdef int32_t[::1] unanswered = np.zeros(len(fds), dtype=np.int32)
    cdef int answer_every_c = answer_every
    cdef uint64_t[::1] latency_view = latency
    cdef uint64_t[::1] lateness_view = lateness
    memset(frame, 0x5A, sizeof(frame))
    frame[0] = DATA
    cdef int epoll = epoll_create1(EPOLL_CLOEXEC)
    if epoll < 0:
        raise OSError(errno, os.strerror(errno))
    try:
        _watch(epoll, descriptors)
        event.events = EPOLLIN
        event.data.u32 = <uint32_t>descriptors.shape[0]
        if epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) < 0:
            raise OSError(errno, os.strerror(errno))
        with nogil:
            total = _drive_loop(
                descriptor, epoll, descriptors, to.names, frame, size_c, messages, interval, window_c, publishes,
                time_ns, arrived_view, latency_view, lateness_view, answer_every_c, unanswered)
    finally:
        close(epoll)
    return (total.published, total.deliveries, total.strangers, total.acks, total.wall,
            latency[:min(total.deliveries, len(latency))], lateness[:total.published])
