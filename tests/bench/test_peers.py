"""Real servers under short loads, and a false server that shows that the generator sees every fault."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from bench.peers import ALL, Missing, Peer
from bench.peers._generator import Generator
from bench.targets import Load
from muster_server.pyext.histogram import Histogram
from tests.waiting import PATIENT_S

PAYLOAD_BYTES = 40
FRAME_BYTES = len(b"[") + PAYLOAD_BYTES + len(b"]\r\n")


@pytest.fixture(scope="module", params=ALL, ids=lambda peer: peer.name)
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    one: Peer = request.param()
    try:
        one.find()
    except Missing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    try:
        one.start()
        yield one
    finally:
        one.stop()


def test_every_saturated_delivery_arrives_intact(peer: Peer) -> None:
    result = peer.run(Load("saturated", 20, window=16, seconds=0.1, warm_up_seconds=0.05))
    assert (result.lost, result.duplicated, result.corrupted) == (0, 0, 0)
    assert result.deliveries == result.published * 20 > 0
    assert result.server_cpu_ns > 0
    assert result.server_rss_bytes > 1 << 20
    assert 0 < result.seconds < 6.0
    assert result.latency is None


def test_every_paced_delivery_arrives_and_is_timed(peer: Peer) -> None:
    result = peer.run(Load("paced", 10, rate=5_000, seconds=0.2, warm_up_seconds=0.0))
    assert (result.lost, result.duplicated, result.corrupted) == (0, 0, 0)
    assert (result.published, result.deliveries) == (100, 1000)
    latency = result.latency
    assert latency is not None
    assert 0 < latency.first_p50 <= latency.middle_p50 <= latency.last_p50
    assert 0 < latency.p50 <= latency.p90 <= latency.p99 <= latency.p99_9


@pytest.mark.parametrize("payload_bytes", [17, 127, 128, 1200])
def test_any_payload_size_is_framed(peer: Peer, payload_bytes: int) -> None:
    load = Load("saturated", 3, payload_bytes=payload_bytes, window=4, seconds=0.03, warm_up_seconds=0.0)
    result = peer.run(load)
    assert (result.lost, result.duplicated, result.corrupted) == (0, 0, 0)
    assert result.deliveries > 0


def test_a_server_can_be_started_again() -> None:
    for kind in ALL:
        try:
            kind.find()
        except Missing:
            continue
        one = kind()
        for _ in range(2):
            (pid,) = one.start()
            one.stop()
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


# ---------------------------------------------------------------- the generator against a server that misbehaves

Mischief = Callable[[int, int, bytes], list[bytes]]  # (subscriber, publish, frame) -> what is written instead


@contextmanager
def false_server(subscribers: int, mischief: Mischief) -> Iterator[Generator]:
    """Passes on each publish, changed by `mischief`; frames look like `[payload]\r\n` in both directions."""
    publisher, inlet = socket.socketpair()
    pairs = [socket.socketpair() for _ in range(subscribers)]

    def serve() -> None:
        waiting, index = b"", 0
        while data := inlet.recv(1 << 16):
            waiting += data
            while len(waiting) >= FRAME_BYTES:
                frame, waiting = waiting[:FRAME_BYTES], waiting[FRAME_BYTES:]
                for number, (_, outlet) in enumerate(pairs):
                    for part in mischief(number, index, frame):
                        outlet.sendall(part)
                index += 1
        for _, outlet in pairs:
            outlet.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    fds = np.array([mine.fileno() for mine, _ in pairs], dtype=np.int32)
    around = (b"[", b"]\r\n")
    publisher.setblocking(False)
    try:
        yield Generator(publisher.fileno(), fds, around, around, PAYLOAD_BYTES, lines=True)
    finally:
        publisher.close()
        thread.join(PATIENT_S)
        inlet.close()
        for mine, _ in pairs:
            mine.close()


def honest(_subscriber: int, _publish: int, frame: bytes) -> list[bytes]:
    return [frame]


def test_frames_in_single_bytes_and_lines_between_them_are_read() -> None:
    def crumbs(_subscriber: int, publish: int, frame: bytes) -> list[bytes]:
        words = b"PING\r\n" if publish % 3 == 0 else b""
        return [bytes([byte]) for byte in words + frame]

    with false_server(2, crumbs) as generator:
        total = generator.saturate(window=3, seconds=0.05)
    assert total["deliveries"] == 2 * total["published"] > 0
    assert total["corrupted"] == total["duplicated"] == total["refused"] == 0


def test_runs_follow_each_other_on_the_same_connections() -> None:
    with false_server(3, honest) as generator:
        for _ in range(3):
            total = generator.saturate(window=8, seconds=0.02)
            assert total["deliveries"] == 3 * total["published"] > 0
            assert total["strays"] == total["duplicated"] == 0


def test_a_lost_delivery_is_missed() -> None:
    def lose(subscriber: int, publish: int, frame: bytes) -> list[bytes]:
        return [] if (subscriber, publish) == (1, 2) else [frame]

    with false_server(3, lose) as generator:
        total = generator.saturate(window=4, seconds=0.05)
    assert total["published"] * 3 - total["deliveries"] == total["skipped"] == 1
    assert total["corrupted"] == total["duplicated"] == 0


def test_a_run_whose_rest_never_comes_gives_up() -> None:
    def dry_up(_subscriber: int, publish: int, frame: bytes) -> list[bytes]:
        return [frame] if publish < 5 else []

    with false_server(2, dry_up) as generator:
        total = generator.saturate(window=4, seconds=1.0, grace=0.2)
    assert (total["published"], total["deliveries"]) == (9, 10)


def test_a_duplicate_is_counted_and_not_delivered() -> None:
    def twice(subscriber: int, publish: int, frame: bytes) -> list[bytes]:
        return [frame, frame] if (subscriber, publish) == (0, 1) else [frame]

    with false_server(2, twice) as generator:
        total = generator.saturate(window=4, seconds=0.05)
    assert total["duplicated"] == 1
    assert total["deliveries"] == 2 * total["published"]


@pytest.mark.parametrize("byte", [0, 1, 7, 12, 17, PAYLOAD_BYTES, FRAME_BYTES - 3])
def test_one_wrong_byte_anywhere_is_seen(byte: int) -> None:
    """Bracket, sequence, moment, pattern: a delivery is compared whole."""

    def spoil(subscriber: int, publish: int, frame: bytes) -> list[bytes]:
        if (subscriber, publish) != (1, 3):
            return [frame]
        return [frame[:byte] + bytes([frame[byte] ^ 0x40]) + frame[byte + 1 :]]

    with false_server(2, spoil) as generator:
        total = generator.saturate(window=4, seconds=0.05, grace=0.3)
    assert total["corrupted"] + (total["published"] * 2 - total["deliveries"]) > 0
    if byte > 0:  # a strange first byte begins a line of the server, so that delivery is lost instead
        assert total["corrupted"] == 1


def test_a_closed_connection_is_counted_and_its_rest_lost() -> None:
    mine, theirs = socket.socketpair()
    publisher, inlet = socket.socketpair()
    theirs.close()
    with mine, publisher, inlet:
        fds = np.array([mine.fileno()], dtype=np.int32)
        one = Generator(publisher.fileno(), fds, (b"[", b"]\r\n"), (b"[", b"]\r\n"), PAYLOAD_BYTES)
        total = one.saturate(window=2, seconds=0.02, grace=0.1)
    assert total["closed"] == 1
    assert (total["published"], total["deliveries"]) == (2, 0)


def test_a_late_delivery_counts_from_the_intended_moment() -> None:
    gate = threading.Event()

    def hold(_subscriber: int, publish: int, frame: bytes) -> list[bytes]:
        if publish == 0:
            gate.wait(0.1)
        return [frame]

    latency, lateness, first, middle, last = (Histogram(1000, 10**12, 3) for _ in range(5))
    with false_server(4, hold) as generator:
        total = generator.pace(
            publishes_per_second=1000,
            seconds=0.05,
            latency=latency,
            lateness=lateness,
            first=first,
            middle=middle,
            last=last,
        )
    assert (total["published"], total["deliveries"]) == (50, 200)
    assert latency.count == 200
    assert first.count == middle.count == last.count == lateness.count == 50
    assert latency.max > 90_000_000
    assert int(latency.percentiles([50.0])[0]) > 50_000_000


def test_loads_that_cannot_be_are_refused() -> None:
    fds = np.array([0], dtype=np.int32)
    with pytest.raises(ValueError, match="payload"):
        Generator(0, fds, (b"[", b"]"), (b"[", b"]"), 16)
    with pytest.raises(ValueError, match="begins with something"):
        Generator(0, fds, (b"", b""), (b"", b""), 64)
    with false_server(1, honest) as generator, pytest.raises(ValueError, match="at least one"):
        generator.saturate(window=0, seconds=0.1)
