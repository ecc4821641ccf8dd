"""`muster top` from nodes' answers: rates of each node, sums, the order, and a terminal restored at the end."""

import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import termios
import time
from typing import Final, Self

import pytest

from muster_server.control.cli.top import KEYS, LATELY, _table, ordered, short
from muster_server.control.errors import UserError
from muster_server.control.terminal.activity import BYTES_OUT, METRICS, TRAFFIC, Row, taken
from muster_server.control.terminal.choices import Column
from muster_server.control.terminal.limits import LAG
from muster_server.control.terminal.readings import CPU, NO_ANSWER, RSS, Reading
from tests.control.command import COMMAND, Command
from tests.control.nodes import processes
from tests.documents import ROOT, spans
from tests.waiting import PATIENT_S

SECONDS_MAX: Final = 60.0
PUBLISHED: Final = "muster_messages_published_total"


def row(name: str, **figures: float | None) -> Row:
    return Row(name=name, role="gateway", node=1, partition=0, state="ready", **figures)  # type: ignore[arg-type]


def test_a_live_table_shows_what_each_node_sent_lately() -> None:
    rows = [row("a", out_per_s=1.0), row("b")]
    assert LATELY not in [column.header for column in _table(rows, Column.none).columns]
    last = _table(rows, Column.none, {1: "▁█"}).columns[-1]
    assert (last.header, list(last.cells)) == (LATELY, ["▁█", "▁█"])


def test_a_sample_has_the_rates_of_each_node_and_the_sums_of_all() -> None:
    nodes = processes(gateways=2)
    zero = dict.fromkeys([*(TRAFFIC - {""}), BYTES_OUT, CPU, "muster_link_dropped_old_total"], 0.0)
    before = {each.node: Reading(10.0, "ready", zero) for each in nodes}
    grown = dict.fromkeys(TRAFFIC - {"", PUBLISHED}, 100.0) | {CPU: 0.5, BYTES_OUT: 2000.0}
    gauges = {RSS: 1 << 20, LAG: 0.25, "muster_rooms": 3.0, "muster_members": 7.0}
    said = grown | gauges | {"muster_link_dropped_old_total": 4.0}
    now = {each.node: Reading(12.0, "ready", said | {PUBLISHED: 60.0}) for each in nodes}
    now[3] = Reading(12.0, "ready", grown | gauges | {"muster_link_dropped_old_total": 8.0})
    now[2] = Reading(12.0, "not ready", {PUBLISHED: 60.0})
    sample = taken("mine", nodes, {**before, 4: Reading(10.0, NO_ANSWER, {})}, now)
    gateway = next(each for each in sample.nodes if each.name == "gateway")
    assert (gateway.in_per_s, gateway.out_per_s, gateway.bytes_out_per_s, gateway.cpu) == (50.0, 50.0, 1000.0, 0.25)
    assert (gateway.rss_bytes, gateway.rooms, gateway.members, gateway.lag_s) == (1 << 20, 3, 7, 0.25)
    assert (gateway.dropped_per_s, gateway.dropped_most) == (4.0, "link_dropped_old")
    proxy = next(each for each in sample.nodes if each.name == "proxy")
    assert (proxy.cpu, proxy.dropped_per_s, proxy.rooms) == (None, None, 3)
    total = sample.total
    assert (sample.instance, total.nodes, total.ready, total.members) == ("mine", 5, 4, 28)
    assert (total.delivered_per_s, total.cpu, total.lag_s) == (100.0, 0.75, 0.25)
    assert total.dropped_per_s == 4.0 + 2.0 + 2.0


def test_a_node_that_does_not_answer_keeps_its_line_without_figures() -> None:
    nodes = processes()
    before = {each.node: Reading(10.0, "ready", {CPU: 1.0}) for each in nodes}
    now = {each.node: Reading(11.0, NO_ANSWER, {}, UserError("gone")) for each in nodes}
    sample = taken("mine", nodes, before, now)
    assert [(each.state, each.cpu, each.dropped_per_s) for each in sample.nodes] == [(NO_ANSWER, None, None)] * 4
    assert (sample.total.nodes, sample.total.ready, sample.total.cpu) == (4, 0, 0.0)


def test_what_is_dropped_most_is_named_only_where_something_is() -> None:
    names = ("muster_dropped_frame_total", "muster_udp_lost_stale_total", "muster_refused_busy_total")
    before = Reading(0.0, "ready", dict.fromkeys(names, 1.0))
    now = Reading(1.0, "ready", dict(zip(names, (1.0, 6.0, 3.0), strict=True)) | {"muster_messages_sent_total": 9.0})
    assert now.drops(before) == {"dropped_frame": 0.0, "udp_lost_stale": 5.0, "refused_busy": 2.0}
    assert now.drops(None) == {}


def test_nodes_are_ordered_by_a_figure_and_those_without_one_come_last() -> None:
    rows = [row("a", cpu=0.1), row("b"), row("c", cpu=0.5), row("d", cpu=0.0)]
    assert [each.name for each in ordered(rows, Column.cpu)] == ["c", "a", "d", "b"]
    assert ordered(rows, Column.none) == rows


def test_every_column_has_a_key_of_its_own() -> None:
    assert len(KEYS) == len(Column)
    assert "q" not in KEYS


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (0.4, "0"),
        (999.4, "999"),
        (999.5, "1k"),
        (1024, "1.02k"),
        (3.44e6, "3.44M"),
        (5e12, "5T"),
    ],
)
def test_figures_have_three_digits(figure: float | None, text: str) -> None:
    assert short(figure) == text


def test_the_metrics_are_those_of_the_roles() -> None:
    assert spans((ROOT / "docs" / "metrics.md").read_text()) >= METRICS


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, muster: Command, *words: str) -> None:
        self._ours, self._theirs = pty.openpty()
        self._before = termios.tcgetattr(self._theirs)
        self._shown = b""
        environment = muster.environment | {"TERM": "xterm", "LINES": "30"}
        environment.pop("NO_COLOR")
        self.process = subprocess.Popen(
            [*COMMAND, *words], cwd=ROOT, env=environment, stdin=self._theirs, stdout=self._theirs
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def type(self, keys: bytes) -> None:
        """As a user does."""
        os.write(self._ours, keys)

    def until(self, text: bytes) -> None:
        """Read the output until `text` comes; earlier output is forgotten."""
        deadline = time.monotonic() + SECONDS_MAX
        while text not in self._shown:
            assert time.monotonic() < deadline, self._shown[-2000:]
            self._read()
        self._shown = self._shown.partition(text)[2]

    def end(self) -> int:
        """Read to the end, after which the terminal is as before. Returns the exit code."""
        while self.process.poll() is None:
            self._read()
        assert termios.tcgetattr(self._theirs) == self._before
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self._ours], [], [], 0.1)[0]:
            self._shown += os.read(self._ours, 1 << 16)


def test_keys_order_and_end_the_screen_which_leaves_the_terminal_as_it_was(muster: Command) -> None:
    with muster.up(), Terminal(muster, "top") as terminal:
        terminal.until(b"4 of 4 nodes ready")
        terminal.type(b"xr")  # x is no key of top
        terminal.until(b"\x1b[1;4m")
        terminal.type(b"q")
        assert terminal.end() == 0


def test_the_screen_ends_with_a_signal_and_in_time_and_with_the_instance(muster: Command) -> None:
    with contextlib.ExitStack() as open_:
        with muster.up():
            with Terminal(muster, "top", "--sort", "cpu") as interrupted:
                interrupted.until(b"\x1b[1;4m")
                interrupted.process.send_signal(signal.SIGINT)
                assert interrupted.end() == 0
            with Terminal(muster, "top", "--for", "0.1") as short_lived:
                assert short_lived.end() == 0
            ended = open_.enter_context(Terminal(muster, "top"))
            ended.until(b"first sample")
        assert ended.end() == 69


def test_a_registry_that_is_away_is_said_in_a_short_time_too(muster: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"zk://127.0.0.1:{silent.getsockname()[1]}/muster"
        done = muster("top", "--json", "--for", "0.5", MUSTER_REGISTRY__URL=url)
    assert done.stderr.startswith(f"muster: the registry {url} does not answer within 3 s")
    assert (done.returncode, done.stdout) == (69, "")


def test_samples_of_which_none_came_in_time_are_said_to_be_missing(muster: Command) -> None:
    with muster.up():
        done = muster("top", "--json", "--for", "0.5")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr == "muster: no sample within 0.5 s; try again, or with a longer time\n"


def test_a_sample_is_a_table_or_a_document_and_several_are_lines(muster: Command) -> None:
    with muster.up("--gateways", "2"):
        once = muster("top", "--once", "--sort", "rss")
        assert once.returncode == 0
        assert once.stdout.startswith("muster  5 of 5 nodes ready, ")
        assert len(once.stdout.splitlines()) == 2 + 5
        nodes = json.loads(muster("top", "--json").stdout)["nodes"]
        assert [node["name"] for node in nodes] == ["router", "broker", "gateway", "gateway-1", "proxy"]
        assert [node["state"] for node in nodes] == ["ready"] * 5
        assert all(node["cpu"] is not None and node["rss_bytes"] > 0 for node in nodes)
        with muster.start("top", "--json", "--for", "50", stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            first, second = (json.loads(following.stdout.readline())["at"] for _ in range(2))
            assert first < second
            following.send_signal(signal.SIGINT)
            assert following.wait(PATIENT_S) == 0
