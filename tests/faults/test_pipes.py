"""`muster pub` and `muster sub` on a lossy network: byte for byte, within 15 s, in little memory."""

import asyncio
import itertools
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import forked, strikes
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.slowness import Slowness
from tests.waiting import PATIENT_S

LINES_PER_CPU_S_MIN = {"nums": 40_000, "kilo": 4_000, "thirty": 150}
"""Lines that pass in a second of processor time of all nodes: a node that repairs more than is lost would take more."""
RSS_MIB_MAX = 200
STOPPED_S = 3.0
BACK_S_MAX = 2.0
TWICE_MAX = 1 / 16
"""The share of repaired messages in a paced room. Each message fills a datagram, and the network loses 2 % of them."""
GAP = re.compile(rb"gap stream=(\S+) first=(\d+) last=(\d+|unknown) reason=(\w+)")
BUFFERS: dict[str, dict[str, Any]] = {
    role: {"recv_buffer_bytes": 0, "send_buffer_bytes": 0} for role in ("gateway", "proxy", "broker", "router")
}
PACED: dict[str, dict[str, Any]] = {"namespaces__paced": {"flow": "paced"}}

NUMBERS = [b"%d" % number for number in range(1, 100_001)]
KILOBYTES = [b"%07d " % number + b"k" * 1_016 for number in range(1, 20_001)]
THIRTY_KILOBYTES = [b"%07d " % number + b"t" * 30_712 for number in range(1, 2_001)]

CASES: dict[str, tuple[str, list[bytes], dict[str, dict[str, Any]]]] = {
    "numbers": ("nums", NUMBERS, {}),
    "numbers_paced": ("paced:nums", NUMBERS, PACED),
    "numbers_default_buffers": ("nums", NUMBERS, BUFFERS),
    "kilobytes": ("kilo", KILOBYTES, {}),
    "kilobytes_paced": ("paced:kilo", KILOBYTES, PACED),
    "kilobytes_paced_default_buffers": ("paced:kilo", KILOBYTES, PACED | BUFFERS),
    "thirty_kilobytes_paced": ("paced:thirty", THIRTY_KILOBYTES, PACED),
    "thirty_kilobytes_paced_default_buffers": ("paced:thirty", THIRTY_KILOBYTES, PACED | BUFFERS),
}


class Subscriber:
    """A `muster sub` with its output in files."""

    def __init__(self, instance: Instance, folder: Path, name: str, room: str, *words: str) -> None:
        self.output, self.errors = folder / f"{name}.out", folder / f"{name}.err"
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = instance.command("sub", room, *words, stdout=output, stderr=errors)
        deadline = time.monotonic() + PATIENT_S
        while b"joined" not in self.errors.read_bytes():
            assert time.monotonic() < deadline, f"not joined: {self.errors.read_text()}"
            time.sleep(0.02)

    def gaps(self) -> list[tuple[bytes, int, int | None, bytes]]:
        """The announced gaps."""
        found = GAP.findall(self.errors.read_bytes())
        return [
            (stream, int(first), None if last == b"unknown" else int(last), why) for stream, first, last, why in found
        ]

    def end(self) -> int:
        """End it as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENT_S)


@contextmanager
def ended(*subscribers: Subscriber) -> Iterator[None]:
    """Leave no process behind."""
    try:
        yield
    finally:
        for subscriber in subscribers:
            subscriber.end()


def publish(instance: Instance, room: str, source: Path) -> forked.Process:
    """`muster pub ROOM < source`."""
    with source.open("rb") as stream:
        return instance.command("pub", room, stdin=stream, stderr=subprocess.DEVNULL)


async def wait_for(condition: Callable[[], object], deadline: float) -> bool:
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def tells_all(subscriber: Subscriber, lines: list[bytes], offset_of: Callable[[int], tuple[int, int]]) -> bool:
    """Whether printed and announced lines reach the last one."""
    last_offset = offset_of(len(lines) - 1)[1]
    if any(last is None or last >= last_offset for _, _, last, _ in subscriber.gaps()):
        return True
    size = subscriber.output.stat().st_size
    if size < len(lines[-1]) + 1:
        return False
    with subscriber.output.open("rb") as stream:
        stream.seek(size - len(lines[-1]) - 1)
        return stream.read() == lines[-1] + b"\n"


@pytest.mark.parametrize(
    "case",
    [
        "numbers",
        "kilobytes_paced",
        "thirty_kilobytes_paced_default_buffers",
        *(pytest.param(name, marks=pytest.mark.soak) for name in CASES),
    ],
)
async def test_what_goes_into_pub_comes_out_of_sub(
    make: Make, figures: Callable[..., None], tmp_path: Path, case: str
) -> None:
    room, lines, sections = CASES[case]
    instance = make(faults={"loss": 0.02}, **sections)
    source = tmp_path / "lines"
    source.write_bytes(b"\n".join(lines) + b"\n")
    with instance.running():
        memory, before = asyncio.create_task(instance.watch_memory()), await asyncio.to_thread(instance.cpu_s)
        whole = Subscriber(instance, tmp_path, "whole", room, "--count", str(len(lines)))
        with ended(whole):
            began = time.monotonic()
            publisher = publish(instance, room, source)
            finished = await wait_for(lambda: whole.process.poll() is not None, began + PATIENT_S)
            took = time.monotonic() - began
            publisher.wait(PATIENT_S)
            acknowledged = time.monotonic() - began
        cpu_s = await asyncio.to_thread(instance.cpu_s) - before
        memory.cancel()
        figures(
            case=case,
            seconds=took,
            acknowledged_s=acknowledged,
            lines_per_s=len(lines) / took,
            lines_per_cpu_s=len(lines) / cpu_s,
            rss_mib=instance.peak.mib(),
        )
        count = whole.output.read_bytes().count(b"\n")
        assert finished, f"{count} of {len(lines)} lines after {took:.1f} s; gaps {whole.gaps()[:5]}"
        assert whole.output.read_bytes() == source.read_bytes()
        assert publisher.returncode == 0
        assert whole.process.returncode == 0
        assert not whole.gaps()
    assert len(lines) / cpu_s > LINES_PER_CPU_S_MIN[room.removeprefix("paced:")]
    assert max(instance.peak.mib().values()) < RSS_MIB_MAX


async def starve(process: forked.Process, seed: int) -> None:
    """Let a process run for 10 to 30 ms and stop it for 50 to 150 ms until its end: an overloaded machine."""
    dice = random.Random(seed)
    while process.poll() is None:
        await asyncio.sleep(dice.uniform(0.01, 0.03))
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(dice.uniform(0.05, 0.15))
        process.send_signal(signal.SIGCONT)


async def test_a_reader_that_seldom_runs_has_the_whole_of_a_paced_room(
    make: Make, figures: Callable[..., None], tmp_path: Path
) -> None:
    room, lines, sections = CASES["kilobytes_paced"]
    instance = make(faults={"loss": 0.02}, **sections)
    source = tmp_path / "lines"
    source.write_bytes(b"\n".join(lines) + b"\n")
    with instance.running():
        starved = Subscriber(instance, tmp_path, "starved", room, "--count", str(len(lines)))
        with ended(starved):
            began = time.monotonic()
            publisher = publish(instance, room, source)
            starving = asyncio.create_task(starve(starved.process, 1))
            finished = await wait_for(lambda: starved.process.poll() is not None, began + PATIENT_S)
            figures(seconds=time.monotonic() - began)
        await starving
        publisher.wait(PATIENT_S)
    count = starved.output.read_bytes().count(b"\n")
    assert finished, f"{count} of {len(lines)} lines; gaps {starved.gaps()[:5]}"
    assert starved.output.read_bytes() == source.read_bytes()
    assert not starved.gaps()


@pytest.mark.parametrize(
    "case", ["numbers", "kilobytes_paced", *(pytest.param(name, marks=pytest.mark.soak) for name in CASES)]
)
async def test_beside_it_one_that_is_stopped_has_the_whole_in_lines_and_gaps(
    make: Make, figures: Callable[..., None], tmp_path: Path, case: str
) -> None:
    room, lines, sections = CASES[case]
    instance = make(faults={"loss": 0.02}, **sections)
    source = tmp_path / "lines"
    source.write_bytes(b"\n".join(lines) + b"\n")
    with instance.running():
        memory, before = asyncio.create_task(instance.watch_memory()), await asyncio.to_thread(instance.cpu_s)
        whole = Subscriber(instance, tmp_path, "whole", room, "--count", str(len(lines)))
        stopped = Subscriber(instance, tmp_path, "stopped", room)
        with ended(whole, stopped):
            began = time.monotonic()
            publisher = publish(instance, room, source)
            await wait_for(lambda: stopped.output.stat().st_size > 0, began + PATIENT_S)
            with strikes.standing_still(stopped.process.pid):
                await asyncio.sleep(STOPPED_S)
            finished = await wait_for(lambda: whole.process.poll() is not None, began + PATIENT_S)
            took = time.monotonic() - began
            publisher.wait(PATIENT_S)
            owner: dict[str, Any] = await asyncio.to_thread(lambda: instance.room("broker", room))
            chunks, rest = divmod(owner["next_offset"] - 1, len(lines))
            assert rest == 0, f"{owner} for {len(lines)} lines"

            def offsets(index: int) -> tuple[int, int]:
                return index * chunks + 1, (index + 1) * chunks

            told = await wait_for(lambda: tells_all(stopped, lines, offsets), time.monotonic() + PATIENT_S)
            gateway = await asyncio.to_thread(lambda: instance.metrics("gateway"))
        cpu_s = await asyncio.to_thread(instance.cpu_s) - before
        memory.cancel()
        gaps = stopped.gaps()
        printed = stopped.output.read_bytes().splitlines()
        twice = gateway["messages_repaired"] / gateway["messages_sent"]
        figures(
            case=case,
            seconds=took,
            lines_per_cpu_s=len(lines) / cpu_s,
            printed=len(printed),
            gaps=len(gaps),
            why=sorted({gap[3].decode() for gap in gaps}),
            twice=twice,
        )
        assert finished, f"{whole.output.read_bytes().count(10)} of {len(lines)} lines; gaps {whole.gaps()[:5]}"
        assert whole.output.read_bytes() == source.read_bytes(), "the stopped one took something from the other"
        assert told, f"the last line is neither printed nor announced: {printed[-1][:20]!r}, {gaps[-3:]}"
        account(lines, printed, gaps, offsets)
        if lines is not NUMBERS and room.startswith("paced:"):
            assert twice < TWICE_MAX, f"{twice:.0%} was sent twice: the stopped reader had no place for it"
    assert len(lines) / cpu_s > LINES_PER_CPU_S_MIN[room.removeprefix("paced:")]
    assert max(instance.peak.mib().values()) < RSS_MIB_MAX


async def test_a_reader_that_stood_still_longer_than_its_session_lives_goes_on_by_itself(
    make: Make, figures: Callable[..., None], tmp_path: Path
) -> None:
    instance = make(gateway={"keepalive_ms": 100, "idle_timeout_ms": 400}, faults={"loss": 0.02})
    lines = NUMBERS[:3_000]
    with instance.running():
        stopped = Subscriber(instance, tmp_path, "stopped", "nums")
        publisher = instance.command("pub", "nums", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert publisher.stdin is not None
        with ended(stopped), publisher.stdin as source:

            def offsets(index: int) -> tuple[int, int]:
                return index + 1, index + 1

            def feed(thousand: int) -> None:
                source.write(b"\n".join(lines[(thousand - 1) * 1_000 : thousand * 1_000]) + b"\n")
                source.flush()

            feed(1)
            assert await wait_for(lambda: tells_all(stopped, lines[:1_000], offsets), time.monotonic() + PATIENT_S)
            with strikes.standing_still(stopped.process.pid):
                feed(2)
                expired = await wait_for(
                    lambda: instance.metrics("gateway")["sessions_expired"], time.monotonic() + PATIENT_S
                )
                assert expired, "its session outlived the idle timeout"
            began, slow = time.monotonic(), Slowness([stopped.process.pid, *instance.pids().values()])
            feed(3)
            assert await wait_for(lambda: tells_all(stopped, lines, offsets), began + PATIENT_S)
            took, took_s_max = time.monotonic() - began, slow.limit(BACK_S_MAX)
            source.close()
            assert publisher.wait(PATIENT_S) == 0
        figures(seconds=took, gaps=len(stopped.gaps()))
        account(lines, stopped.output.read_bytes().splitlines(), stopped.gaps(), offsets)
    assert took < took_s_max


def account(
    lines: list[bytes],
    printed: list[bytes],
    gaps: list[tuple[bytes, int, int | None, bytes]],
    offsets: Callable[[int], tuple[int, int]],
) -> None:
    """Printed lines and announced gaps are disjoint, in order, and together the whole."""
    index_of = {line: index for index, line in enumerate(lines)}
    indices = [index_of[line] for line in printed]
    assert all(one < other for one, other in itertools.pairwise(indices)), "printed out of order or twice"
    announced: set[int] = set()
    for _, first, last, _ in gaps:
        announced.update(range(first, (offsets(len(lines) - 1)[1] if last is None else last) + 1))
    missing = [
        index
        for index in sorted(set(range(len(lines))) - set(indices))
        if not announced & set(range(*_span(offsets(index))))
    ]
    assert not missing, f"{len(missing)} lines neither printed nor announced, as {missing[:5]}; gaps {gaps[:5]}"
    both = [index for index in indices if announced.issuperset(range(*_span(offsets(index))))]
    assert not both, f"{len(both)} lines printed and announced as missing, as {both[:5]}"


def _span(offsets: tuple[int, int]) -> tuple[int, int]:
    return offsets[0], offsets[1] + 1
