"""Each null control does what it claims, seen from outside: its datagrams arrived, and it ends in time."""

import socket
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from bench import cpu
from bench.null import _null
from bench.null.relays import chain
from bench.null.sockets import Clients, clients, number_of, open_udp
from tests.waiting import PATIENT_S

LOCALHOST = np.array([number_of("127.0.0.1")], dtype=np.uint32)


def port_of(sock: socket.socket) -> NDArray[np.uint16]:
    return np.array([sock.getsockname()[1]], dtype=np.uint16)


def received(sockets: Clients) -> list[list[bytes]]:
    """Everything that waits in each client, read by Python alone."""
    boxes = []
    for sock in sockets.sockets:
        sock.setblocking(False)
        box = []
        while True:
            try:
                box.append(sock.recv(65536))
            except BlockingIOError:
                break
        boxes.append(box)
    return boxes


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with open_udp() as sock:
        yield sock


@pytest.mark.parametrize("options", [{}, {"plain": True}, {"batch": 7}, {"batch": 1}])
def test_each_destination_gets_its_turn(sender: socket.socket, options: dict[str, int]) -> None:
    with clients(5) as five:
        sent, calls, errors, cpu_ns, wall_ns = _null.send(
            sender.fileno(),
            five.addresses,
            five.ports,
            200,
            count=103,
            seconds=5.0,
            **options,  # type: ignore[arg-type]
        )
        boxes = received(five)
    assert (sent, errors) == (103, 0)
    assert [len(box) for box in boxes] == [21, 21, 21, 20, 20]
    assert {len(datagram) for box in boxes for datagram in box} == {200}
    assert 0 < calls <= 103
    assert 0 < cpu_ns <= wall_ns * 1.1


def test_a_super_packet_is_cut_into_its_segments(sender: socket.socket) -> None:
    with clients(2) as two:
        sent, calls, errors, *_ = _null.send(
            sender.fileno(), two.addresses, two.ports, 100, segments=8, count=32, batch=2
        )
        boxes = received(two)
    assert (sent, calls, errors) == (32, 2, 0)
    assert [[len(datagram) for datagram in box] for box in boxes] == [[100] * 16] * 2


@pytest.mark.parametrize("plain", [False, True])
def test_a_refused_destination_is_counted_and_the_others_get_theirs(sender: socket.socket, plain: bool) -> None:
    """The kernel refuses broadcast in the middle of a batch: a short count, then an error, then the rest."""
    with clients(2) as two:
        addresses = np.array([two.addresses[0], number_of("255.255.255.255"), two.addresses[1]], dtype=np.uint32)
        ports = np.array([two.ports[0], 9, two.ports[1]], dtype=np.uint16)
        sent, _, errors, *_ = _null.send(sender.fileno(), addresses, ports, 64, batch=6, count=60, plain=plain)
        boxes = received(two)
    assert sent == sum(len(box) for box in boxes) == 60
    assert [len(box) for box in boxes] == [30, 30]
    assert errors in {29, 30}


def test_sending_ends_when_the_time_is_over(sender: socket.socket) -> None:
    with clients(3, discard=True) as three:
        began = time.monotonic()
        sent, *_ = _null.send(sender.fileno(), three.addresses, three.ports, 64, seconds=0.05)
        assert time.monotonic() - began < 2.0
        assert sent > 0
        assert received(three) == [[], [], []]


def test_impossible_sends_are_refused(sender: socket.socket) -> None:
    ports = port_of(sender)
    for options in (
        {"size": 0},
        {"size": 2000, "segments": 64},
        {"size": 10, "segments": 2, "plain": True},
        {"size": 9, "batch": 0},
    ):
        with pytest.raises(ValueError):
            _null.send(sender.fileno(), LOCALHOST, ports, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _null.send(sender.fileno(), LOCALHOST, ports.astype(np.int64), 64)
    with pytest.raises(ValueError, match="as many ports"):
        _null.send(sender.fileno(), LOCALHOST, np.array([1, 2], dtype=np.uint16), 64)


@pytest.mark.parametrize("gro", [False, True])
def test_drain_counts_datagrams_with_and_without_gro(sender: socket.socket, gro: bool) -> None:
    with open_udp(gro=gro, buffer_bytes=1 << 20) as sink:
        _null.send(sender.fileno(), LOCALHOST, port_of(sink), 100, segments=10, count=200, batch=1)
        datagrams, messages, payload, truncated, *_ = _null.drain(sink.fileno(), gro=gro)
    assert (datagrams, payload, truncated) == (200, 20_000, 0)
    assert messages == (20 if gro else 200)


def test_drain_waits_for_what_is_still_to_come(sender: socket.socket) -> None:
    with open_udp() as sink:
        address = sink.getsockname()
        timer = threading.Timer(0.05, lambda: [sender.sendto(b"x" * 9, address) for _ in range(3)])
        timer.start()
        datagrams, _, payload, *_ = _null.drain(sink.fileno(), wait=True, count=3, seconds=5.0)
        timer.join()
        assert (datagrams, payload) == (3, 27)
        began = time.monotonic()
        assert _null.drain(sink.fileno(), wait=True, seconds=0.02)[0] == 0
        assert time.monotonic() - began < 2.0


def test_a_datagram_larger_than_the_buffer_is_seen_as_truncated(sender: socket.socket) -> None:
    with open_udp() as sink:
        sender.sendto(b"x" * 3000, sink.getsockname())
        assert _null.drain(sink.fileno())[:4] == (1, 1, 2048, 1)


@pytest.mark.parametrize("gro", [False, True])
def test_receivers_count_per_socket(sender: socket.socket, gro: bool) -> None:
    with clients(10, gro=gro, buffer_bytes=1 << 20) as ten:
        each, stop = np.zeros(10, dtype=np.int64), np.zeros(1, dtype=np.int32)
        answers: list[tuple[int, int, int, int, int, int]] = []
        thread = threading.Thread(
            target=lambda: answers.append(_null.receive(ten.fds, each, stop, gro=gro, seconds=10))
        )
        thread.start()
        sent, *_ = _null.send(sender.fileno(), ten.addresses, ten.ports, 50, segments=4, batch=5, count=4000)
        stop[0] = 1
        thread.join(PATIENT_S)
    datagrams, messages, payload, truncated, *_ = answers[0]
    assert sent == datagrams == 4000
    assert (payload, truncated) == (200_000, 0)
    assert list(each) == [400] * 10
    assert messages == (1000 if gro else 4000)


def test_receivers_end_when_the_time_is_over() -> None:
    with clients(2) as two:
        each, stop = np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int32)
        assert _null.receive(two.fds, each, stop, seconds=0.02)[0] == 0


def test_echo_answers_and_the_client_times_each_from_its_due_moment() -> None:
    with open_udp() as server, open_udp() as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
        client.connect(server.getsockname())
        echoed: list[int] = []
        thread = threading.Thread(target=lambda: echoed.append(_null.echo(server.fileno(), seconds=10)))
        thread.start()
        latency, lateness = _null.echo_client(client.fileno(), 64, 5000, 300)
        client.send(b"")
        thread.join(PATIENT_S)
    assert echoed == [300]
    assert (len(latency), len(lateness)) == (300, 300)
    assert 1_000 < int(np.median(latency)) < 1_000_000_000


def test_a_late_answer_counts_from_the_intended_moment() -> None:
    with open_udp() as server, open_udp() as client:
        client.connect(server.getsockname())
        server.settimeout(PATIENT_S)
        came, sent = 0, list[int]()

        def slow_server() -> None:
            nonlocal came
            questions = [server.recvfrom(100) for _ in range(20)]
            came = time.monotonic_ns()
            time.sleep(0.1)
            for data, source in questions:
                sent.append(time.monotonic_ns())
                server.sendto(data, source)

        thread = threading.Thread(target=slow_server)
        thread.start()
        before = time.monotonic_ns()
        latency, _ = _null.echo_client(client.fileno(), 16, 1000, 20, patience=10.0)
        after = time.monotonic_ns()
        thread.join(PATIENT_S)
    assert len(latency) == 20
    assert sent[0] - came > 80_000_000
    # All were answered at once, so the first had waited 19 ms longer than the last. The first was due after 1 ms.
    for number, took, left in zip(range(20), latency, sent, strict=True):
        least, most = left - came + (19 - number) * 1_000_000, after - before - (1 + number) * 1_000_000
        assert least <= int(took) <= most


def test_unanswered_questions_are_missing_not_invented(sender: socket.socket) -> None:
    with open_udp() as silent:
        sender.connect(silent.getsockname())
        latency, lateness = _null.echo_client(sender.fileno(), 64, 2000, 20, patience=0.02)
    assert (len(latency), len(lateness)) == (0, 20)


def test_yardsticks_are_plausible(sender: socket.socket) -> None:
    for each in (
        _null.getppid_ns(2000),
        _null.empty_recv_ns(sender.fileno(), 2000),
        _null.epoll_ns(sender.fileno(), 2000),
    ):
        assert 10 < each < 1_000_000


@pytest.mark.parametrize(
    ("options", "published"), [({"window": 8, "count": 200}, 200), ({"rate": 1000, "seconds": 0.2}, 200)]
)
def test_three_relays_carry_every_publish_to_every_client(options: dict[str, int], published: int) -> None:
    with (
        clients(20, buffer_bytes=1 << 20) as twenty,
        open_udp(buffer_bytes=1 << 20) as publisher,
        chain(twenty) as (entry, pids),
    ):
        before = cpu.total_ns(pids)
        sent, deliveries, strangers, acks, wall_ns, latency, lateness = _null.drive(
            publisher.fileno(), twenty.fds, number_of(entry[0]), entry[1], 200, answer_every=2, **options
        )
        used = cpu.total_ns(pids) - before
        assert len(pids) == 3
    assert (sent, deliveries, strangers) == (published, published * 20, 0)
    assert 0 < acks <= published
    assert used > deliveries * 100
    assert wall_ns > 0
    if "rate" in options:
        assert (len(latency), len(lateness)) == (deliveries, published)


def test_relays_end_by_themselves_and_with_the_block() -> None:
    with clients(1) as one:
        with chain(one, seconds=0.1) as (_, pids):
            deadline = time.monotonic() + PATIENT_S
            while time.monotonic() < deadline and any(state(pid) != "Z" for pid in pids):
                time.sleep(0.02)
            assert [state(pid) for pid in pids] == ["Z"] * 3
        assert [state(pid) for pid in pids] == ["gone"] * 3


def state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"
