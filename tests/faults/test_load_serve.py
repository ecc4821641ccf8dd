"""`muster load` on nodes of `muster serve` that were started by hand, with one of them killed under it: the report shows the
dip, and nothing is lost without a word."""

import asyncio
import html
import json
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.faults.hosts import Hosts, Node
from tests.waiting import PATIENT_S

CALM: Final = 2
"""Seconds of a run before the death."""
DIP_MS: Final = 50.0
"""Messages of a node that is gone take at least this long: nobody asks for them at once."""


async def under_load(hosts: Hosts, words: Sequence[str], killed: Node) -> dict[str, Any]:
    """The report of a load during which a node dies, as its page has it."""
    page = hosts.path / "page.html"
    running = await hosts.asking(
        "load", *words, "--rate", "200", "--for", "5s", "--html", str(page), "--registry", "embedded"
    )
    assert running.stdout is not None
    async with asyncio.timeout(PATIENT_S):
        for _ in range(CALM + 1):  # with the head of the table
            await running.stdout.readline()
        killed.kill()
        await running.communicate()
    report: dict[str, Any] = json.loads(html.unescape(page.read_text().partition("<pre>")[2].partition("</pre>")[0]))
    return report


@pytest.mark.parametrize(
    ("system", "names", "killed"),
    [
        ("rooms", ("broker-a", "broker-b", "router", "gateway-a", "gateway-b", "proxy"), "broker-a"),
        pytest.param(
            "rooms", ("broker", "router", "gateway-a", "gateway-b", "proxy"), "gateway-a", marks=pytest.mark.soak
        ),
        ("edge", ("broker", "router", "edge-a", "edge-b"), "edge-a"),
    ],
)
async def test_a_load_on_nodes_started_by_hand_shows_the_dip_of_a_death_and_each_loss_is_told(
    hosts: Hosts, system: str, names: Sequence[str], killed: str
) -> None:
    nodes = {name: hosts.start(name, name.partition("-")[0]) for name in names}
    await hosts.serve(*nodes.values())
    report = await under_load(hosts, [system, "--members", "40", "--rooms", "8"], nodes[killed])
    counts, points = report["counts"], report["points"]
    assert report["ended"] == "complete"
    assert counts["published"] > 0
    assert counts["joined"] == 40, "all came back"
    assert killed.startswith("broker") or counts["sessions_lost"] > 0
    assert counts["corrupted"] == counts["out_of_turn"] == 0
    assert counts["delivered"] + counts["lost"] >= counts["published"] * 5
    assert max(point["latency_ms"]["max"] or 0.0 for point in points[CALM:]) >= DIP_MS
