"""A load by a fake generator: the schedule, the points, the claims, the report, the page, and several hosts."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from muster_server.control.errors import UserError
from muster_server.control.load import drive as driving
from muster_server.control.load.claims import parse
from muster_server.control.load.drive import Run, drive
from muster_server.control.load.generator import Share, Slice, histogram
from muster_server.control.load.hosts import Lead, join
from muster_server.control.load.openloop import OpenLoop
from muster_server.control.load.options import schedule, seconds
from muster_server.control.load.page import chart, page
from muster_server.control.load.report import Report
from muster_server.control.load.series import Names, Second, Series, packed, percentiles, second, unpack
from muster_server.control.terminal.found import End, Target
from tests.waiting import PATIENT_S

NAMES = Names(sent="sent", done="done", wrong=["lost"])
ELSEWHERE = Target(end=End(url="muster://127.0.0.1:9/" + "ab" * 32 + "?token=x"))
"""A target whose metrics are not read."""


class Fake:
    """Sends ten a call, of which some are lost, until its schedule is over."""

    sent, done, wrong = "sent", "done", ("lost",)

    def __init__(self, share: Share, slices: int, lost: int, arrives: bool) -> None:
        self._share, self._slices, self._lost, self._arrives = share, slices, lost, arrives
        self._calls = 0
        self.closed = False

    async def open(self) -> str:
        return f"fake {self._share.index} of {self._share.of}"

    async def advance(self, seconds: float) -> Slice:
        if self._calls < self._slices:  # one that is complete has nothing to wait for
            await asyncio.sleep(0.01)
        self._calls += 1
        calls = min(self._calls, self._slices)
        over = self._calls >= self._slices
        return Slice(
            counts={"sent": 10 * calls, "done": 10 * calls - self._lost, "lost": self._lost},
            latencies=np.full(10, 1_000 * (self._share.index + 1), dtype=np.uint64),
            late=np.zeros(10, dtype=np.uint64),
            over=over,
            complete=over and self._arrives,
        )

    async def close(self) -> None:
        self.closed = True


class FakeLoad(msgspec.Struct, frozen=True, kw_only=True):
    for_s: float = 1.0
    slices: int = 3
    lost: int = 0
    arrives: bool = True

    slices_others: int = 0
    """Slices of the hosts that join; 0: as many as the leading one has."""

    def generator(self, share: Share) -> Fake:
        slices = (share.index and self.slices_others) or self.slices
        return Fake(share, slices, self.lost, self.arrives)


def test_an_empty_second_has_no_latency_and_a_full_one_has_all() -> None:
    series = Series(NAMES)
    point = series.add(1.0, {"sent": 0}, [Second(counts={"sent": 0})], {})
    assert set(point.latency_ms.values()) == {None}
    made = second(Slice(counts={"sent": 50, "done": 40}, latencies=np.arange(1_000, 41_000, 1_000, dtype=np.uint64)))
    point = series.add(3.0, made.counts, [made], {"broker": 0.5})
    assert (point.sent_per_s, point.done_per_s) == (25.0, 20.0)
    assert point.latency_ms["p50"] == pytest.approx(20.0, rel=0.01)
    assert point.latency_ms["max"] == pytest.approx(40.0, rel=0.01)


def test_histograms_of_hosts_add_up_as_one() -> None:
    parts, whole, sum_of_parts = [histogram() for _ in "123"], histogram(), histogram()
    for number, part in enumerate(parts):
        values = np.random.default_rng(number).integers(1, 10**9, 1_000, dtype=np.uint64)
        part.record(values)
        whole.record(values)
    for part in parts:
        unpack(packed(part), sum_of_parts)
    assert np.array_equal(whole.counts, sum_of_parts.counts)
    assert percentiles(whole) == percentiles(sum_of_parts)


@pytest.mark.parametrize("data", [b"1", b"\xff\xff\xff\xff" + bytes(8), bytes(13)])
def test_counts_that_do_not_fit_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="histogram"):
        unpack(data, histogram())


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("p99<50ms", True),
        ("p99 < 5ms", False),
        ("p99<0.05s", True),
        ("lost=0", True),
        ("lost==0", True),
        ("sent_per_s>=1k", True),
        ("sent_per_s>2k", False),
        ("p50<=100us", False),
    ],
)
def test_a_claim_is_judged_by_its_figure(text: str, holds: bool) -> None:
    assert parse(text).holds({"p50": 1.0, "p99": 20.0, "lost": 0.0, "sent_per_s": 1_500.0}) is holds


def test_a_figure_without_a_value_fails_its_claim() -> None:
    assert not parse("p99<1s").holds({"p99": None})


@pytest.mark.parametrize("text", ["", "p99", "p99<", "<5ms", "p99<5x", "p99<1.2.3", "p99!5"])
def test_a_claim_in_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError, match="for example p99<50ms"):
        parse(text)


def test_a_claim_about_an_unknown_figure_names_those_there_are() -> None:
    with pytest.raises(UserError, match=r"unknown figure p98 \(expected p99, lost\)"):
        parse("p98<1ms").holds({"p99": 1.0, "lost": 0.0})


@pytest.mark.parametrize(("text", "value"), [("250ms", 0.25), ("90s", 90.0), ("5m", 300.0), ("1h", 3600.0), ("7", 7.0)])
def test_times_have_units(text: str, value: float) -> None:
    assert seconds("--for", text) == value


@pytest.mark.parametrize(
    ("length", "ramp"), [("x", "0s"), ("25h", "0s"), ("500ms", "0s"), ("10s", "11s"), ("-1s", "0s")]
)
def test_a_schedule_that_cannot_be_is_refused(length: str, ramp: str) -> None:
    with pytest.raises(UserError, match=r"--for|--ramp"):
        schedule(length, ramp)


@pytest.mark.parametrize("whole", [0, 1, 7, 64, 1_000])
def test_the_parts_of_all_hosts_are_the_whole(whole: int) -> None:
    assert sum(Share(run="r", index=index, of=5).part(whole) for index in range(5)) == whole


async def test_each_request_is_sent_once_and_one_that_hangs_holds_up_no_other() -> None:
    hangs, numbers = asyncio.Event(), list[int]()

    async def request(number: int) -> str | None:
        numbers.append(number)
        if number == 3:
            await hangs.wait()
        return "refused" if number == 5 else None

    loop = OpenLoop(request, rate=1_000.0, for_s=0.1, ramp_s=0.0)
    made = await loop.advance(0.3)
    assert numbers == list(range(100))
    assert made.over
    assert not made.complete
    assert made.counts == {"sent": 100, "done": 98, "failed": 1, "refused": 1}
    hangs.set()
    made = await loop.advance(PATIENT_S)
    assert made.complete
    assert (made.counts["done"], len(made.latencies)) == (99, 1)


async def test_a_ramp_sends_half_as_many() -> None:
    async def request(number: int) -> str | None:
        return None

    loop = OpenLoop(request, rate=1_000.0, for_s=0.2, ramp_s=0.2)
    assert (await loop.advance(PATIENT_S)).counts["sent"] == 100


async def ran(run: Run, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = await asyncio.wait_for(drive(run), PATIENT_S)
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("lost", "claims", "code"),
    [(0, [], 0), (2, [], 1), (2, ["lost<=2"], 0), (0, ["p99<0.5ms"], 1), (0, ["p99<5ms", "lost=0"], 0)],
)
async def test_the_exit_code_judges_the_claims_or_else_the_losses(
    capsys: pytest.CaptureFixture[str], lost: int, claims: Sequence[str], code: int
) -> None:
    run = Run(system="fake", settings=FakeLoad(lost=lost), where=ELSEWHERE, claims=[parse(each) for each in claims])
    found, printed = await ran(run, capsys)
    assert found == code
    assert re.search(r"^ +seconds +sent/s", printed, re.M)
    assert "30 sent" in printed


async def test_a_run_whose_last_messages_never_came_fails_whatever_it_claims(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "SETTLE_S", 0.0)
    run = Run(system="fake", settings=FakeLoad(arrives=False), where=ELSEWHERE, claims=[parse("lost=0")])
    found, printed = await ran(run, capsys)
    assert found == 1
    assert "NOT ALL ARRIVED" in printed


async def test_a_run_in_json_has_its_points_and_a_page_needs_nothing_beside_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    run = Run(system="<fake>", settings=FakeLoad(), where=ELSEWHERE, as_json=True, html=file)
    code, printed = await ran(run, capsys)
    report = msgspec.json.decode(printed, type=Report)
    assert code == 0
    assert (report.ended, report.hosts, len(report.points)) == ("complete", 1, 3)
    assert report.counts == {"sent": 30, "done": 30, "lost": 0}
    written = file.read_text()
    assert "<fake>" not in written
    assert not re.search(r"(?:src|href)=|url\(", written)
    assert written.count("<svg") == 3
    assert page(report) == written


def test_a_second_without_a_value_leaves_a_gap_in_its_curve() -> None:
    drawn = chart([1.0, 2.0, 3.0, 4.0, 5.0], {"p99": [1.0, 2.0, None, 4.0, 5.0]}, "ms")
    assert drawn.count("<polyline") == 2


async def test_a_run_that_is_interrupted_reports_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(system="fake", settings=FakeLoad(slices=10_000, for_s=1_000.0), where=ELSEWHERE, as_json=True)
    task = asyncio.create_task(drive(run))
    await asyncio.sleep(0.1)
    task.cancel()
    assert await asyncio.wait_for(task, PATIENT_S) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == "interrupted"


async def test_two_hosts_share_a_run_and_one_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = asyncio.Queue[str]()
    monkeypatch.setattr("muster_server.control.load.hosts.say", said.put_nowait)
    run = Run(system="fake", settings=FakeLoad(slices=5), where=ELSEWHERE, as_json=True)
    lead = Lead(1, run.name, "fake", run.settings)
    await lead.listen("127.0.0.1:0")
    leading = asyncio.create_task(drive(run, lead))
    where = (await said.get()).split()[-1]
    assert await asyncio.wait_for(join(where, {"fake": FakeLoad}), PATIENT_S) == 0
    assert await asyncio.wait_for(leading, PATIENT_S) == 0
    await lead.close()
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert report.hosts == 2
    assert report.counts["sent"] == 100
    assert report.latency_ms["max"] == pytest.approx(2.0, rel=0.01)


async def test_a_host_that_leads_and_has_ended_waits_for_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = asyncio.Queue[str]()
    monkeypatch.setattr("muster_server.control.load.hosts.say", said.put_nowait)
    run = Run(system="fake", settings=FakeLoad(slices=2, slices_others=20), where=ELSEWHERE, as_json=True)
    lead = Lead(1, run.name, "fake", run.settings)
    await lead.listen("127.0.0.1:0")
    leading = asyncio.create_task(drive(run, lead))
    where = (await said.get()).split()[-1]
    assert await asyncio.wait_for(join(where, {"fake": FakeLoad}), PATIENT_S) == 0
    assert await asyncio.wait_for(leading, PATIENT_S) == 0
    await lead.close()
    report = msgspec.json.decode(capsys.readouterr().out, type=Report)
    assert (report.ended, report.counts["sent"]) == ("complete", 20 + 200)
    assert len(report.points) <= 2 + PATIENT_S, "a point each second at most"


@pytest.mark.parametrize("where", ["", "127.0.0.1:1", "nowhere/word", "127.0.0.1:1/"])
async def test_a_run_to_join_that_is_misspelt_is_refused(where: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT/WORD"):
        await join(where, {})


async def test_a_host_with_another_word_is_not_let_in() -> None:
    lead = Lead(1, "run", "fake", FakeLoad())
    await lead.listen("127.0.0.1:0")
    with pytest.raises(UserError, match="leading host"):
        await join(f"127.0.0.1:{lead.port}/another", {"fake": FakeLoad})
    await lead.close()


def test_a_target_on_another_machine_needs_its_owner() -> None:
    driving.check_target("rooms", ["127.0.0.1", "::1"], owned=False)
    driving.check_target("rooms", ["192.0.2.1"], owned=True)
    with pytest.raises(UserError, match="--i-own-this-target"):
        driving.check_target("rooms", ["127.0.0.1", "192.0.2.1"], owned=False)
