"""`muster size`: what a plan says, and that its configuration is one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_server.control.cli import size as word
from muster_server.control.config.load import load
from muster_server.control.errors import UserError
from muster_server.control.load.report import Report
from muster_server.control.size import costs as files
from muster_server.control.size import measure
from muster_server.control.size.costs import Costs
from muster_server.control.size.plan import FULL, Machine, Planned
from muster_server.systems.messages import size as messages
from muster_server.systems.rooms import size as rooms

MACHINE = Machine()


def of_rooms(**demand: float) -> Planned:
    return rooms.plan(msgspec.convert(demand, rooms.Demand, strict=False), rooms.Costs(), MACHINE)


def nodes(planned: Planned) -> dict[str, int]:
    return {part.role: part.nodes for part in planned.parts}


@given(
    members=st.floats(1, 1e8),
    each=st.floats(0.1, 20),
    rate=st.floats(0, 1e6),
    payload=st.integers(1, 60_000),
    more=st.sampled_from(["members", "rate"]),
)
def test_a_larger_demand_needs_as_many_nodes_or_more_and_no_node_is_above_its_limits(
    members: float, each: float, rate: float, payload: int, more: str
) -> None:
    demand = {"members": members, "each": each, "rate": rate, "payload": payload, "rooms": 1_000}
    planned = of_rooms(**demand)
    for part in planned.parts:
        assert part.nodes >= 1
        for name, share in part.limits.items():
            assert share <= FULL * 1.001 or name == "memory", (part.role, name, share)
    larger = nodes(of_rooms(**{**demand, more: 2 * demand[more] + 1}))
    assert all(larger[role] >= count for role, count in nodes(planned).items())


def test_members_alone_are_limited_by_sessions_and_one_more_gateway_adds_its_part() -> None:
    planned = of_rooms(members=10_000_000)
    gateway = planned.parts[0]
    assert (gateway.role, gateway.first, gateway.nodes) == ("gateway", "sessions", 14)
    assert gateway.more == pytest.approx(FULL * rooms.SESSIONS_MAX)


def testone_room_for_all_is_bounded_by_its_gateways_and_the_plan_says_so() -> None:
    planned = of_rooms(members=1_000_000, rooms=1, rate=10)
    assert planned.notes[0].startswith("One room with members at all ")


def test_a_large_busy_room_is_passed_on_by_gateways_which_spares_its_brokers() -> None:
    """PF-41: a million members at 1,500 gateways, 1,000 messages a second."""
    note = rooms.one_room(rooms.Demand(members=1e6, rooms=1), rooms.Costs(), 1_500)
    most = int(note.partition("gets at most ")[2].split()[0].replace(",", ""))
    assert most >= 1_000
    assert "(93 without)" in note
    assert "more brokers" in rooms.one_room(rooms.Demand(members=1e4, rooms=1), rooms.Costs(), 24)
    demand = rooms.Demand(members=1_000_000, rooms=1, rate=100)
    assert rooms.relays(demand, 1, 100) == 10
    assert rooms.relays(demand, 1, 24) == 24
    assert rooms.relays(rooms.Demand(members=1_000_000, rooms=1, rate=9), 1, 100) == 100


def test_more_than_one_center_can_take_is_said() -> None:
    demand = messages.Demand(delayed=100_000)
    planned = messages.plan(demand, messages.Costs(), MACHINE)
    assert "split the topics over several instances" in planned.notes[0]
    assert not messages.plan(messages.Demand(delayed=1_000), messages.Costs(), MACHINE).notes


ALL: Mapping[str, float] = {
    "members": 2e6,
    "rooms": 5e5,
    "rate": 2e4,
    "payload": 300,
    "online": 1e7,
    "likes": 5e3,
    "delayed": 1e3,
}


def test_json_has_every_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert word.size(ALL, MACHINE, None, True, False) == 0
    made = json.loads(capsys.readouterr().out)
    roles = {part["role"] for part in made["parts"]}
    assert {"gateway", "broker", "router", "proxy", "likes", "center", "online-writer", "online-reader"} <= roles
    assert made["nodes"] == sum(part["nodes"] for part in made["parts"])
    assert made["machine"] == files.SHIPPED


@pytest.mark.parametrize("members", [1e3, 2e6, 3e8])
def test_the_configuration_is_accepted(members: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    word.size({**ALL, "members": members, "rooms": members / 100, "rate": members / 100}, MACHINE, None, False, True)
    text = capsys.readouterr().out
    assert ("[serve]" in text) == (members > 1e8)
    file = tmp_path / "muster.toml"
    file.write_text(text)
    load(file, {})


def test_without_a_demand_it_says_what_to_give() -> None:
    with pytest.raises(UserError, match="no demand"):
        word.size({}, MACHINE, None, False, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a file of `muster size --measure`"),
        ('{"machine": "x", "systems": {"rooms": {"datagram_us": -1}}}', "costs of rooms"),
        ('{"machine": "x", "systems": {"rooms": {"speed": 1}}}', "costs of rooms"),
    ],
)
def test_a_wrong_file_of_costs_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        word.size(ALL, MACHINE, file, False, True)


def report(words: Any, _config: object) -> Report:
    """An instance whose roles cost what is known here."""
    given = dict(zip(words[1::2], words[2::2], strict=True))
    sent, seconds = int(float(given.get("--rate", "0")) * 10), 10.0
    fanout = int(given.get("--members", 1)) // int(given.get("--rooms", 1))
    done = sent * fanout
    busy = {
        "gateway": done * 5.0,
        "broker": sent * 50.0,
        "proxy": sent * 40.0,
        "likes": sent * 20.0,
        "center": sent * 30.0,
    }
    return msgspec.convert(
        {
            "system": words[0],
            "command": "",
            "began": "",
            "took_s": seconds,
            "hosts": 1,
            "connected": "",
            "ended": "complete",
            "names": {"sent": "sent", "done": "done", "wrong": []},
            "counts": {"sent": sent, "done": done},
            "latency_ms": {},
            "late_p99_ms": None,
            "cpu_s": {role: used / 1e6 + 0.1 for role, used in busy.items()},
            "claims": [],
            "points": [],
        },
        Report,
    )


def test_measured_costs_are_those_of_the_roles_beyond_an_idle_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_report", report)
    file = tmp_path / "cpu.json"
    assert word.measure(file, None) == 0
    found = files.read(file)
    assert found.systems["rooms"]["datagram_us"] == pytest.approx(5.0, rel=0.01)
    assert found.systems["rooms"]["publish_alone_us"] == pytest.approx(40.0, rel=0.01)
    assert found.systems["likes"]["like_us"] == pytest.approx(20.0, rel=0.01)
    assert found.systems["messages"]["accept_center_us"] == pytest.approx(4.5, rel=0.01)
    assert word.size(ALL, MACHINE, file, True, False) == 0


def test_roles_that_share_a_process_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    together = report(measure.IDLE, None)
    shared = msgspec.structs.replace(together, cpu_s={"broker+gateway+proxy+router": 1.0})
    monkeypatch.setattr(measure, "_report", lambda words, config: shared)
    with pytest.raises(UserError, match="muster up --apart"):
        measure.costs({}, None, print)


def test_shipped_costs_are_valid() -> None:
    for name, module in word.modules().items():
        assert Costs().of(name, module.Costs) == module.Costs()
