"""The console and a large cluster: pages by the server, bounded answers, figures of readings."""

import json
import time
from typing import Any

import pytest
from msgspec.structs import replace

from muster_server.control.cluster.instance import Process, Record
from muster_server.control.config.options import Links
from muster_server.control.errors import NotRunning, UserError
from muster_server.control.terminal.readings import BEGAN, CPU, Reading, figures
from muster_server.systems.console import sampler
from muster_server.systems.console.sampler import ONLINE, POINTS_MAX, Sampler
from tests.console.served import Served

NODES = 2_000
ANSWER_MAX = 256 << 10


def process(number: int) -> Process:
    """A gateway of a large cluster."""
    name = f"gateway-{number:04}-{'x' * 20}"
    return Process(
        name=name,
        role="gateway",
        node=number,
        partition=0,
        pid=0,
        epoch=1,
        restarts=0,
        ready=True,
        link=("127.0.0.1", 1),
        admin=("127.0.0.1", 1),
        registered="running",
    )


class Cluster:
    """Nodes whose readings a test plays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: int) -> None:
        self.processes = [process(number) for number in range(1, nodes + 1)]
        self.turn = 0
        monkeypatch.setattr(sampler, "read_all", self.read)

    def read(self, processes: Any) -> dict[int, Reading]:
        self.turn += 1
        link: dict[str, Any] = {"role": "gateway", "rtt_us": 900, "loss": 0.0, "availability": 1.0, "failures": 0}
        link |= {"lasts_s": 5.0, "observed_s": 5.0, "ejected": None}
        links = [{"node": other, **link} for other in (1, 2, 3)]
        status = {"state": "ready", "version": "0.2.0", "links": links, "links_lost": []}
        values = {
            CPU: float(self.turn),
            BEGAN: 1.0,
            ONLINE: 3.0,
            **{f"muster_figure_{number}": 1.0 for number in range(300)},
        }
        return {each.node: Reading(float(self.turn), "ready", values, status=status) for each in processes}

    async def look(self) -> Record:
        """The record of the nodes."""
        return Record(
            name="large", version="0", pid=0, started=0, token_file="", processes=self.processes, faults=False
        )


def still(served: Served, cluster: Cluster) -> Sampler:
    """A sampler in the place of the console's, which goes on in a thread: this one reads only when the test says so."""
    served.entry.sampler = Sampler(cluster.look, 5, Links(), served.entry.base.log)
    return served.entry.sampler


async def read(of: Sampler, cluster: Cluster, times: int = 2) -> None:
    """Read a few times."""
    record = await cluster.look()
    before: Any = {}
    for _ in range(times):
        now = cluster.read(record.processes)
        of._take(record, before, now)
        before = now


async def test_no_answer_about_a_large_cluster_is_large(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, NODES)
    await read(still(served, cluster), cluster)
    mine = await served.logged_in()
    name = cluster.processes[7].name
    for path in ("overview", "history", "nodes?limit=200", "topology", f"nodes/{name}"):
        answer = await mine.ask("GET", f"/api/v1/console/{path}")
        assert answer.status_code == 200, path
        assert len(answer.content) <= ANSWER_MAX, path
    found = (await mine.ask("GET", "/api/v1/console/nodes?search=gateway-0042&sort=cpu")).json()
    assert (found["total"], found["rows"][0]["name"]) == (1, cluster.processes[41].name)
    last = (await mine.ask("GET", "/api/v1/console/nodes?offset=1990")).json()
    assert (last["total"], len(last["rows"])) == (NODES, 10)
    wrong = await mine.ask("GET", "/api/v1/console/nodes?sort=colour")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_request")


async def test_a_registry_that_is_away_leaves_what_was_known(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, 3)
    of = still(served, cluster)
    await read(of, cluster)
    of._failed("the registry does not answer")
    overview = of.overview()
    assert overview is not None
    assert (overview.error, overview.total.nodes) == ("the registry does not answer", 3)


async def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    cluster = Cluster(monkeypatch, 1)
    of = Sampler(cluster.look, 0.5, Links(), served.entry.base.log)
    now = time.time()
    monkeypatch.setattr("muster_server.control.terminal.activity.time.time", lambda: now + 3.0 * cluster.turn)
    await read(of, cluster, POINTS_MAX + 10)
    assert len(of.history) == POINTS_MAX
    assert len(json.dumps([point.at for point in of.history])) < ANSWER_MAX


async def test_devices_online_are_kept_for_an_hour_and_shards_do_not_count_twice(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    cluster = Cluster(monkeypatch, 4)
    cluster.processes[3] = replace(cluster.processes[3], role="online-writer", name="online-writer")
    of = still(served, cluster)
    await read(of, cluster, 3)
    mine = await served.logged_in()
    past = (await mine.ask("GET", "/api/v1/console/history")).json()
    assert set(past["online"]) == {9}
    assert (of.history.maxlen or 0) * max(of._every_s, sampler.HISTORY_S / sampler.POINTS_MAX) >= sampler.HISTORY_S


async def test_no_nodes_are_an_error_that_says_what_to_do(served: Served) -> None:
    async def nothing() -> Record:
        raise NotRunning("no instance runs here; start one: muster up")

    of = Sampler(nothing, 5, Links(), served.entry.base.log)
    with pytest.raises(UserError, match="muster up"):
        await of._look()
    assert of.overview() is None


def test_a_nodes_metrics_are_read_as_prometheus_reads_them() -> None:
    page = (
        "# HELP muster_a_total Text with 1 number\n# TYPE muster_a_total counter\n"
        'muster_a_total{name="a b",node="1"} 12.0\nmuster_b{le="+Inf"} 7\nmuster_c 1.5e-05\nmuster_d NaN\n'
    )
    found = figures(page)
    assert found["muster_a_total"] == 12
    assert found["muster_b"] == 7
    assert found["muster_c"] == 1.5e-05
    assert found["muster_d"] != found["muster_d"]
