"""UDP sockets of the null controls: simulated clients with an address and a port each."""

import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import addressof, create_string_buffer
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UDP_GRO = 104
SO_ATTACH_FILTER = 26
SO_RCVBUFFORCE = 33
SO_SNDBUFFORCE = 32


def open_udp(host: str = "127.0.0.1", *, buffer_bytes: int = 0, gro: bool = False) -> socket.socket:
    """A bound, unconnected socket on a port of its own; `buffer_bytes` is forced if the process may do so."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, 0))
    if buffer_bytes:
        for force, ask in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, buffer_bytes)
            except PermissionError:
                sock.setsockopt(socket.SOL_SOCKET, ask, buffer_bytes)
    if gro:
        sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    return sock


def discard_input(sock: socket.socket) -> None:
    """The kernel drops everything that arrives (a filter that returns 0): the send path without a reader."""
    program = create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF_RET | BPF_K, 0
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, addressof(program)))


@dataclass(frozen=True)
class Clients:
    """The sockets with their addresses and counts for the loops; index i is the same client everywhere."""

    sockets: list[socket.socket]
    fds: NDArray[np.int32]
    addresses: NDArray[np.uint32]
    ports: NDArray[np.uint16]


@contextmanager
def clients(count: int, *, gro: bool = False, discard: bool = False, buffer_bytes: int = 0) -> Iterator[Clients]:
    """`count` sockets on 127.1.0.1 and up, each with a port of its own."""
    allow_files(count + 256)
    sockets: list[socket.socket] = []
    try:
        for index in range(count):
            sock = open_udp(f"127.1.{index // 250}.{index % 250 + 1}", gro=gro, buffer_bytes=buffer_bytes)
            sockets.append(sock)
            if discard:
                discard_input(sock)
        names = [sock.getsockname() for sock in sockets]
        yield Clients(
            sockets,
            np.array([sock.fileno() for sock in sockets], dtype=np.int32),
            np.array([number_of(host) for host, _ in names], dtype=np.uint32),
            np.array([port for _, port in names], dtype=np.uint16),
        )
    finally:
        for sock in sockets:
            sock.close()


def number_of(host: str) -> int:
    """The 32 bits of an IPv4 address, host order."""
    return int.from_bytes(socket.inet_aton(host), "big")


def allow_files(count: int) -> None:
    """Raise the limit of open files if needed. `OSError` says what to do when the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise OSError(f"{count} open files are needed, the hard limit is {hard}: raise it with ulimit -Hn {count}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
