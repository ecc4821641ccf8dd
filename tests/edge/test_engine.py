"""The engine of an edge: a turn that waits for the next datagram of a link serves clients meanwhile."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from muster_server import _engines
from muster_server.systems.edge import wire
from tests.waiting import PATIENT_S

LINGER_US = 2_000
ROUNDS = 1_000
PING = bytes([0x80 | wire.PING, 0x80]) + bytes(4)


def engine() -> Any:
    return _engines.EdgeEngine(
        {
            "node": 1,
            "epoch": 1,
            "link_bind": ("127.0.0.1", 0),
            "cluster_key": (1, bytes(32)),
            "seed": 1,
            "recv_buffer": 1 << 20,
            "send_buffer": 1 << 20,
            "payload_bytes": 1_200,
        },
        {"bind": ("127.0.0.1", 0), "name_key": bytes(16), "reset_secret": bytes(32)},
        b"{}",
    )


@contextlib.contextmanager
def running(work: Any) -> Iterator[None]:
    """Repeats `work` in a thread of its own until the block ends."""
    ended = threading.Event()

    def again() -> None:
        while not ended.is_set():
            work()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def lingered(edge: Any) -> int:
    counted: int = next(value for name, _, value in edge.counters() if name == "turns_lingered")
    return counted


def test_a_turn_that_lingers_hears_clients_too() -> None:
    edge = engine()
    edge.linger(LINGER_US)
    clients, _ = edge.addresses()
    found = [0]

    def turn() -> None:
        edge.turn()
        found[0] = lingered(edge)  # a turn has the engine for itself

    with running(turn), socket.create_connection(tuple(clients), timeout=PATIENT_S) as client:
        client.sendall(wire.upgrade(f"{clients[0]}:{clients[1]}", "json"))
        assert client.recv(4_096).startswith(b"HTTP/1.1 101 ")
        for _ in range(ROUNDS):  # one of them comes soon after the answer to the one before
            client.sendall(PING)
            assert client.recv(4_096)[0] == 0x80 | wire.PONG
            if found[0]:
                break
        else:
            raise AssertionError("a turn lingers for datagrams alone, and clients wait meanwhile")
    edge.close()
