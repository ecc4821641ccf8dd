"""Judgements on the answers of an instance's nodes."""

from collections.abc import Mapping

import msgspec

from muster_server.control.cluster.instance import Record
from muster_server.control.doctor.running import CONNECTED, TROUBLE, buffers, judged, nodes, troubles
from muster_server.control.terminal.limits import LAG
from muster_server.control.terminal.readings import NO_ANSWER, Reading, read
from tests.control.nodes import processes
from tests.documents import ROOT, spans
from tests.ports import free_ports

STANDING = [msgspec.structs.replace(process, restarts=0) for process in processes(gateways=2)]


def reading(values: Mapping[str, float] | None = None, effective: int = 4 << 20, state: str = "ready") -> Reading:
    told = [{"asked": 4 << 20, "effective": 4 << 20}, {"asked": 4 << 20, "effective": effective}]
    return Reading(0.0, state, values or {}, status={"receive_buffers": told})


def all_say(**options: int) -> dict[int, Reading]:
    return {process.node: reading(**options) for process in STANDING}  # type: ignore[arg-type]


def record(**other: object) -> Record:
    rest = {"name": "mine", "version": "1", "pid": 1, "started": 1, "token_file": "", "gateways": [], "proxies": []}
    return Record(**{**rest, "processes": STANDING, "faults": False, **other})  # type: ignore[arg-type]


def test_an_instance_that_serves_has_nothing_to_mend() -> None:
    found = judged(record(), "1", all_say())
    assert [(finding.check, finding.level) for finding in found] == [
        ("nodes", "ok"),
        ("buffers in use", "ok"),
        ("counters", "ok"),
    ]
    assert found[0].text == "5 of 5 serve"


def test_another_version_and_injected_faults_are_told() -> None:
    found = judged(record(version="0", faults=True), "1", all_say())
    assert [finding.level for finding in found if finding.check == "instance"] == ["warn", "warn"]


def test_who_does_not_serve_fails_and_who_was_started_again_is_told() -> None:
    said = all_say()
    said[3], said[4] = reading(state="not ready"), Reading(0.0, NO_ANSWER, {})
    said[1], said[7] = reading({CONNECTED: 0.0}), reading({CONNECTED: 1.0})
    said[2] = Reading(0.0, "waits for the registry zk://h:1/a", {})
    other = {"broker": {"restarts": 2, "waits": "the registry zk://h:1/a"}}
    again = [msgspec.structs.replace(each, **other.get(each.name, {})) for each in STANDING]
    found = {finding.text: finding.level for finding in nodes(again, said)}
    assert found == {
        "router has no session with the registry and uses the last map": "warn",
        "broker waits for the registry zk://h:1/a": "fail",
        "broker was restarted 2 times": "warn",
        "gateway is not ready": "fail",
        "proxy does not answer": "fail",
    }


def test_a_node_that_refuses_to_start_is_not_taken_for_one_that_waits_for_the_registry() -> None:
    """Its reason was called a wait, and the registry was named as what to mend."""
    why = "log /a/likes/0: segment 0 of epoch 1 is damaged at byte 7"
    refuses = msgspec.structs.replace(STANDING[1], waits=why, admin=("127.0.0.1", free_ports(1)[0]))
    (found,) = nodes([refuses], {refuses.node: read(refuses)})
    assert (found.level, found.text) == ("fail", f"{refuses.name} cannot start and is retried: {why}")
    assert "registry" not in found.mend


def test_buffers_that_were_given_smaller_are_named() -> None:
    said = all_say()
    said[7] = reading(effective=212_992)
    (found,) = buffers(STANDING, said)
    assert (found.level, found.text) == ("warn", "too small: gateway-1 208 KiB of 4 MiB")
    (many,) = buffers(STANDING, all_say(effective=212_992))
    assert many.text.endswith(" and 1 more")


def test_counters_that_mean_trouble_are_told_with_who_has_them() -> None:
    said = all_say()
    said[2] = reading({"muster_stalls_total": 3.0, LAG: 0.05, "muster_messages_sent_total": 9.0})
    said[3] = reading({"muster_stalls_total": 1.0, LAG: 0.25})
    found = troubles(STANDING, said)
    assert [finding.level for finding in found] == ["warn", "warn"]
    assert found[0].text.endswith(": muster_stalls_total of broker 3, gateway 1")
    assert found[1].text.endswith(f": {LAG} of gateway 0.25")


def test_what_means_trouble_is_counted_by_the_roles() -> None:
    assert spans((ROOT / "docs" / "metrics.md").read_text()) >= {*TROUBLE, CONNECTED}


def test_nodes_of_a_registry_are_not_for_muster_up_to_mend() -> None:
    here, away = (
        msgspec.structs.replace(STANDING[at], pid=0, link=link)
        for at, link in enumerate([("127.0.0.1", 1), ("192.0.2.1", 1)])
    )
    silent = {process.node: reading(state=NO_ANSWER) for process in (here, away)}
    gone, apart = nodes([here, away], silent)
    assert (gone.level, gone.text, gone.mend) == ("fail", f"{here.name} does not answer", "see its log on 127.0.0.1")
    assert (apart.level, apart.mend) == ("warn", "run muster doctor there")
    assert "answers only on its own host, 192.0.2.1" in apart.text


def test_a_partition_that_nobody_serves_fails() -> None:
    known = {"session": "connected", "uncovered": {"router": [], "broker/main": [1, 3]}}
    said = all_say()
    said[1] = Reading(0.0, "ready", {}, status={"registry": known})
    for told in (judged(record(), "1", said), judged(record(uncovered={"broker/main": [1, 3]}), "1", all_say())):
        assert [(each.level, each.text) for each in told if each.check == "partitions"] == [
            ("fail", "partition 1 of broker/main has no running replica"),
            ("fail", "partition 3 of broker/main has no running replica"),
        ]
