"""The checks of the fleet, from what nodes say and from servers that do not answer."""

import time
from pathlib import Path
from typing import Any

import pytest

from muster_server.control.config.load import load
from muster_server.systems.fleet.authority import Authority
from muster_server.systems.fleet.broker import AUTHORITY
from muster_server.systems.fleet.doctor import certificates, examined, files, nodes

MINUTE = 29_700_000
INDEX: dict[str, Any] = {"broker": "connected", "clients": 1_000, "sessions": "kept"}
LEADS: dict[str, Any] = {
    "leads": True,
    "store": "answers",
    "broker": "connected",
    "last_minute": MINUTE,
    "index_nodes": [1, 2],
}
FOLLOWS: dict[str, Any] = {"leads": False, "store": "answers", "index_nodes": [1, 2]}


def told(index: dict[str, dict[str, Any]], schedulers: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each.level, each.text) for each in nodes(index, schedulers, MINUTE)]


def test_a_fleet_that_is_well_is_one_line() -> None:
    said = told({"index": INDEX, "index-1": INDEX}, {"scheduler": LEADS, "scheduler-1": FOLLOWS})
    assert said == [("ok", "scheduler leads, 1,000 clients are online")]


@pytest.mark.parametrize(
    ("index", "lead", "level", "text"),
    [
        ({"broker": "away"}, {}, "fail", "index has no connection to an MQTT broker"),
        ({"clients": 900}, {}, "warn", "index knows 900 clients, but another node 1,000"),
        ({"sessions": "17 wait"}, {}, "warn", "index: Redis does not answer, 17 wait"),
        ({}, {"leads": False}, "fail", "0 schedulers lead; one takes over within 4 s"),
        ({}, {"store": "no such table"}, "fail", "scheduler: no such table"),
        ({}, {"broker": "away"}, "fail", "scheduler leads without a connection to an MQTT broker"),
        ({}, {"last_minute": MINUTE - 7}, "warn", "scheduler is 7 minutes behind the clock"),
        ({}, {"last_minute": MINUTE + 3}, "warn", "the clock was set back: no task runs for 3 minutes"),
        (
            {},
            {"tasks_refused": 2, "refused": {"bad": "customer is 'gold'"}},
            "warn",
            "2 tasks cannot be scheduled, for example bad: customer is 'gold'",
        ),
        ({}, {"results": "no topic"}, "warn", "scheduler: results wait: no topic"),
        ({}, {"index_nodes": [1]}, "warn", "scheduler gets answers of 1 of 2 index nodes"),
    ],
)
def test_each_trouble_is_named(index: dict[str, Any], lead: dict[str, Any], level: str, text: str) -> None:
    said = told({"index": INDEX | index, "index-1": INDEX}, {"scheduler": LEADS | lead, "scheduler-1": FOLLOWS})
    assert said == [(level, text)]


def test_certificates_that_end_soon_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path / AUTHORITY)
    assert certificates(tmp_path, time.time()) == []
    authority.prepare(["localhost"])
    for client, days in (("soon", 3), ("late", 90), ("renewed", 3), ("renewed", 90), ("gone", 3)):
        authority.issue(client, days)
    authority.revoke("gone")
    (found,) = certificates(tmp_path, time.time())
    assert (found.level, found.text) == ("warn", "certificates of 1 clients end within 14 days, for example soon")
    authority.revoke("soon")
    (found,) = certificates(tmp_path, time.time())
    assert (found.level, found.text) == ("ok", "2 clients have certificates")
    (authority.folder / "certificates.json").write_text("{")
    (found,) = certificates(tmp_path, time.time())
    assert (found.level, "unreadable" in found.text) == ("fail", True)


def test_two_that_lead_are_a_failure() -> None:
    assert told({"index": INDEX, "index-1": INDEX}, {"a": LEADS, "b": LEADS}) == [
        ("fail", "2 schedulers lead; one takes over within 4 s")
    ]


def test_files_bound_the_clients_of_mosquitto() -> None:
    assert files(None, 5).level == "ok"
    assert files(20_000, 1_000).level == "ok"
    found = files(20_000, 19_000)
    assert (found.level, found.text) == ("warn", "19,968 clients may connect to mosquitto; 19,000 are connected")
    assert "ulimit -n" in found.mend


def test_a_broker_and_a_redis_that_do_not_answer_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "word").write_text("x\n")
    monkeypatch.setenv("MUSTER_FLEET__MQTT", "mqtt://plane@127.0.0.1:1,127.0.0.1:2")
    monkeypatch.setenv("MUSTER_FLEET__PASSWORD_FILE", str(tmp_path / "word"))
    monkeypatch.setenv("MUSTER_FLEET__REDIS", "redis://127.0.0.1:3/0")
    found = examined(load(None).config, None)
    assert [each.level for each in found] == ["fail"] * 3
    assert found[0].text.startswith("broker 127.0.0.1:1: ")
    assert found[1].text.startswith("broker 127.0.0.1:2: ")
    assert found[2].text.startswith("Redis: ")


def test_a_fleet_of_this_machine_alone_names_its_programs_and_the_room_for_clients() -> None:
    found = examined(load(None).config, None)
    assert len(found) == 3
    assert [("clients may connect" in each.text) for each in found] == [False, True, False]
