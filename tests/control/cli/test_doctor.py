"""`muster doctor` as a command: its output, its exit code, and that nothing blocks it."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from muster_server.control.cli import doctor
from muster_server.control.cli.doctor import Examination, examined
from muster_server.control.config.options import whole
from muster_server.control.doctor import probe, programs
from muster_server.control.doctor.finding import Finding, ok
from muster_server.control.errors import UserError
from muster_server.control.terminal.found import Target
from muster_server.systems.rooms.gateway import Gateway
from muster_server.systems.rooms.proxy import Proxy
from tests import strikes
from tests.control.command import Command
from tests.ports import free_ports

MENDED = {"warn", "fail"}
TRIES = 20


def findings(muster: Command, *words: str, code: int | None = None, **environment: str) -> list[dict[str, Any]]:
    done = muster("doctor", "--json", *words, **environment)
    document = json.loads(done.stdout)
    levels = [finding["level"] for finding in document["findings"]]
    assert (document["failures"], document["warnings"]) == (levels.count("fail"), levels.count("warn"))
    assert done.returncode == (1 if document["failures"] else 0)
    assert code is None or done.returncode == code
    assert done.stderr == ""
    found: list[dict[str, Any]] = document["findings"]
    return found


def test_every_check_says_something_and_what_is_not_as_it_should_be_has_its_line(muster: Command) -> None:
    found = findings(muster)
    told = {finding["check"] for finding in found}
    assert {"configuration", "instance", "ports", "receive buffer", "clock", "versions", "Redis"} <= told
    assert len(told) > 20
    assert all(finding["mend"] for finding in found if finding["level"] in MENDED)
    assert not [finding for finding in found if "the check failed" in finding["text"]]
    (about,) = [finding for finding in found if finding["check"] == "instance"]
    assert (about["level"], about["mend"]) == ("ok", "muster up")


def test_a_line_is_a_finding(muster: Command) -> None:
    lines = muster("doctor").stdout.splitlines()
    assert all(line.split()[0] in {"ok", "warn", "fail"} for line in lines[:-1])
    assert lines[-1].endswith(" ok")


def test_a_mistake_in_the_configuration_fails_and_the_rest_is_checked(muster: Command) -> None:
    found = findings(muster, code=1, MUSTER_GATEWAY__ARENA_MIB="much")
    assert (found[0]["check"], found[0]["level"]) == ("configuration", "fail")
    assert "MUSTER_GATEWAY__ARENA_MIB" in found[0]["text"]
    assert len(found) > 20


def test_a_folder_in_nobodys_home_fails_and_the_rest_is_checked(muster: Command) -> None:
    found = findings(muster, code=1, MUSTER_INSTANCE__DIR="~nosuch/x")
    (about,) = [finding for finding in found if finding["check"] == "instance folder"]
    assert (about["level"], about["mend"]) == ("fail", "set instance.dir")
    assert "unknown user's home" in about["text"]
    assert len(found) > 20


def test_a_port_that_somebody_else_has_fails(muster: Command) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        found = findings(muster, code=1, MUSTER_GATEWAY__BIND=f"127.0.0.1:{port}")
    (taken,) = [each for each in found if each["check"] == "ports" and each["level"] == "fail"]
    assert taken["text"].startswith(f"gateway.bind: 127.0.0.1:{port} is in use by another process")


def test_a_registry_that_nobody_serves_fails(muster: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as away:
        away.bind(("127.0.0.1", 0))  # and does not listen
        ports = [each.getsockname()[1] for each in (there, away)]
        one = ",".join(f"127.0.0.1:{port}" for port in ports)
        (warned,) = [
            each for each in findings(muster, MUSTER_REGISTRY__URL=f"zk://{one}/a") if each["check"] == "registry"
        ]
        assert warned["level"] == "warn"
        none = findings(muster, code=1, MUSTER_REGISTRY__URL=f"zk://127.0.0.1:{ports[1]}/a")
    assert [each["level"] for each in none if each["check"] == "registry"] == ["fail"]


def test_a_folder_that_cannot_be_made_fails(muster: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = findings(muster, code=1, MUSTER_INSTANCE__DIR=str(tmp_path / "file" / "below"))
    (folder,) = [each for each in found if each["check"] == "instance folder"]
    assert folder["level"] == "fail"


def answered(found: list[dict[str, Any]]) -> bool:
    """Whether a fake engine had the time to report its buffers: one second, which is short under load."""
    return any(each["text"].startswith("too small: ") for each in found)


def test_a_running_instance_is_asked_and_a_node_that_stands_still_fails(muster: Command) -> None:
    with muster.up("--gateways", "2"):
        told = next(filter(answered, (findings(muster) for _ in range(TRIES))))
        assert {"nodes", "buffers in use", "counters"} <= {each["check"] for each in told}
        assert ["for 5 nodes" in each["text"] for each in told if each["check"] == "cores"] == [True]
        pids = {role["name"]: role["pid"] for role in json.loads(muster("status", "--json").stdout)["nodes"]}
        with strikes.standing_still(pids["gateway-1"]):
            found = findings(muster, code=1)
    assert "gateway-1 does not answer" in [each["text"] for each in found if each["level"] == "fail"]


def test_what_does_not_end_is_said_to_and_held_up_by_nothing() -> None:
    never = threading.Event()

    def hangs() -> list[Finding]:
        never.wait()
        return []

    def breaks() -> list[Finding]:
        raise UserError("no such thing")

    found = examined({"one": hangs, "two": breaks, "three": lambda: [ok("three", "fine")]}, 2.0)
    never.set()
    assert [(each.check, each.level) for each in found] == [("one", "warn"), ("two", "warn"), ("three", "ok")]
    assert [each.text for each in found[:2]] == ["the check did not end within 2 s", "the check failed: no such thing"]


def test_a_file_of_the_kernel_that_is_not_there_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(path: str) -> str:
        raise FileNotFoundError(2, "No such file", path)

    monkeypatch.setattr(probe, "text", none)
    levels = {each.level for each in examined(Examination(whole()(), Target()).checks(), doctor.LIMIT_S)}
    assert "warn" in levels


def test_a_wildcard_of_the_configuration_is_held_against_the_addresses_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {
        "/proc/net/fib_trie": "".join(f"|-- {each}\n /32 host LOCAL\n" for each in ("192.0.2.2", "192.0.2.3")),
        "/proc/net/if_inet6": f"fd00{'':0<27}1 04 40 00 80 eth0\n",
    }
    monkeypatch.setattr(probe, "text", files.__getitem__)
    monkeypatch.setattr(probe, "ipv6", lambda: True)
    config = whole()(gateway=Gateway(bind="192.0.2.2:7400"), proxy=Proxy(bind="[::]:7402", link_bind="192.0.2.2:0"))  # type: ignore[call-arg]
    (told,) = Examination(config, Target()).checks()["addresses"]()
    assert (told.level, told.text.partition(";")[0]) == ("warn", "proxy.bind: any of 192.0.2.2, 192.0.2.3")
    files.clear()  # where nothing is a wildcard, nothing is read
    assert [each.level for each in Examination(whole()(), Target()).checks()["addresses"]()] == ["ok"]


def test_a_super_packet_really_goes_to_ourselves() -> None:
    tried = probe.offload()
    assert (tried.arrived, tried.error) == (tried.wanted, "")


def test_a_socket_gets_what_a_socket_of_the_same_wish_gets() -> None:
    assert probe.buffer("receive", 16_384) == probe.buffer("send", 16_384) == 16_384
    assert probe.buffer("receive", 0) > 0


def test_every_server_has_the_line_that_installs_it() -> None:
    found = programs.judged(lambda _: None)
    assert [each.level for each in found] == ["ok"] * len(programs.PROGRAMS)
    assert all(each.mend.startswith("apt-get install ") for each in found)
    assert programs.judged(lambda name: f"/bin/{name}")[0] == ok("Redis", "/bin/redis-server")


def test_a_record_that_cannot_be_read_is_told_and_the_rest_is_checked(muster: Command) -> None:
    muster.folder.mkdir(mode=0o700)
    (muster.folder / "instance.json").write_text("{}")
    found = findings(muster)
    assert [each["level"] for each in found if each["check"] == "instance"] == ["warn"]
    assert {"ports", "clock"} <= {each["check"] for each in found}


@pytest.mark.parametrize("why", ["registry away", "password not there", "record not read"])
def test_where_it_is_not_known_whether_nodes_run_here_their_ports_are_held_against_nobody(
    muster: Command, tmp_path: Path, why: str
) -> None:
    environment = {"MUSTER_REGISTRY__URL": f"zk://127.0.0.1:{free_ports(1)[0]}/a"}
    if why == "password not there":
        names = {"AUTH": "digest", "USER": "muster", "PASSWORD_FILE": str(tmp_path / "none")}
        environment |= {f"MUSTER_REGISTRY__{name}": value for name, value in names.items()}
    if why == "record not read":
        muster.folder.mkdir(mode=0o700)
        (muster.folder / "instance.json").write_text("{}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
        node.bind(("127.0.0.1", 0))
        environment["MUSTER_GATEWAY__BIND"] = f"127.0.0.1:{node.getsockname()[1]}"
        found = {(each["check"], each["level"]) for each in findings(muster, code=None, **environment)}
    assert {("configuration", "ok"), ("instance", "warn")} <= found
    assert ("ports", "fail") not in found
    assert "memory" not in {check for check, _ in found}
