"""`muster cluster grow` with fake roles in the embedded registry: interrupted, resumed, undone, and its output."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder
from tests import strikes
from tests.control.command import Command
from tests.waiting import PATIENT_S


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Command]:
    """With a running instance, in which a stopped node keeps its session."""
    command = Command(tmp_path / "i")
    command.environment["MUSTER_REGISTRY__SESSION_MS"] = "60000"
    with command.up("--brokers", "1x2"):
        yield command


def ended(muster: Command, how: signal.Signals, text: str, *words: str) -> int:
    """Begin to grow, and end the command by a signal when it prints this. Returns its exit code."""
    with muster.start("cluster", "grow", *words, stderr=subprocess.PIPE) as command:
        assert command.stderr is not None
        assert any(text in line for line in command.stderr), f"never said {text!r}"
        command.send_signal(how)
        return command.wait(PATIENT_S)


def layer(muster: Command, name: str = "broker/main") -> dict[str, Any]:
    """The state of the layer in `cluster show`."""
    shown = json.loads(muster("cluster", "show", "--json").stdout)
    found: dict[str, Any] = next(each for each in shown["layers"] if each["layer"] == name)
    return found


def names(muster: Command) -> set[str]:
    """The current nodes."""
    return {process.name for process in instance.find(Folder(muster.folder)).processes}


def pid(muster: Command, name: str) -> int:
    """The process of a node."""
    (found,) = (each.pid for each in instance.find(Folder(muster.folder)).processes if each.name == name)
    return found


def test_brokers_double_twice_and_routers_once_and_their_nodes_are_started(muster: Command) -> None:
    done = muster("cluster", "grow", "broker", "--to", "4", "--grace", "0.1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"layer": "broker/main", "partitions": 4}
    for step in ("to 2 partitions: prepare", "to 2 partitions: switched", "to 4 partitions: final"):
        assert f"broker/main: {step}" in done.stderr
    assert [node["partition"] for node in layer(muster)["nodes"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert layer(muster)["partitions"] == 4
    assert "growth" not in layer(muster)

    done = muster("cluster", "grow", "router", "--to", "2", "--grace", "0")
    assert (done.returncode, done.stdout) == (0, "router has 2 partitions\n")
    assert muster("cluster", "grow", "router", "--to", "2").returncode == 0, "it has so many"
    assert muster("cluster", "replica", "add", "router", "1").returncode == 0
    named = muster("cluster", "grow", "broker", "--to", "4", "--registry", "embedded")
    assert (named.returncode, named.stdout) == (0, "broker/main has 4 partitions\n"), "it is the one of this instance"
    away = muster("cluster", "grow", "broker", "--to", "8", "--registry", "zk://127.0.0.1:1/muster")
    assert (away.returncode, away.stdout) == (69, "")
    assert "the registry zk://127.0.0.1:1/muster does not answer within 3 s" in away.stderr
    again = muster("cluster", "grow", "router", "--to", "1")
    assert (again.returncode, again.stderr) == (
        1,
        "muster: router has 2 partitions; their number cannot be reduced\n",
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_is_killed_at_a_step_is_shown_resumed_and_undone_before_the_switch(
    muster: Command, how: signal.Signals
) -> None:
    code = -9 if how == signal.SIGKILL else 75
    with strikes.standing_still(pid(muster, "proxy")):
        assert ended(muster, how, "to 2 partitions: prepare, waits for", "broker", "--to", "2") == code
    found = layer(muster)
    assert (found["partitions"], found["growth"]["to"], found["growth"]["step"]) == (1, 2, "prepare")
    assert found["step_s"] > 0
    assert "grows: broker/main, 1 to 2 partitions: prepare for " in muster("cluster", "show").stdout
    second = muster("cluster", "grow", "broker", "--to", "2")
    assert second.returncode == 75
    assert "is in progress (prepare): --resume continues it; --abort undoes it" in second.stderr

    undone = muster("cluster", "grow", "broker", "--abort")
    assert (undone.returncode, undone.stdout) == (0, "broker/main has 1 partition\n")
    assert names(muster) == {"proxy", "gateway", "router", "broker", "broker-1"}

    words = ("broker", "--to", "2", "--grace", "60")
    assert ended(muster, how, "to 2 partitions: switched, waits for 60 s of grace", *words) == code
    late = muster("cluster", "grow", "broker", "--abort")
    assert late.returncode == 1
    assert "(switched): too late to undo it; --resume finishes it" in late.stderr
    resumed = muster("cluster", "grow", "broker", "--resume", "--grace", "0")
    assert (resumed.returncode, resumed.stdout) == (0, "broker/main has 2 partitions\n")


def test_a_node_that_stands_still_is_named_until_the_deadline_and_left_as_it_is(muster: Command) -> None:
    with strikes.standing_still(pid(muster, "gateway")):
        began = time.monotonic()
        done = muster("cluster", "grow", "router", "--to", "2", "--wait", "1")
    assert done.returncode == 75
    assert time.monotonic() - began < PATIENT_S
    assert "still waiting after 1 s for" in done.stderr
    assert "gateway" in done.stderr.splitlines()[-1]
    assert muster("cluster", "grow", "router", "--resume", "--grace", "0").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("broker",), 2, "missing one of --to, --resume and --abort"),
        (("broker", "--to", "3"), 2, "--to: 3 is not a power of two"),
        (("broker", "--to", "2", "--abort"), 2, "--abort excludes --resume and --to"),
        (("gateway", "--to", "2"), 2, "gateway"),
        (("broker", "--to", "2"), 69, "start one: muster up"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, words: tuple[str, ...], code: int, text: str) -> None:
    done = Command(tmp_path / "none")("cluster", "grow", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
    assert text in done.stderr


def test_without_a_registry_there_is_no_growth(tmp_path: Path) -> None:
    command = Command(tmp_path / "i")
    with command.up("--registry", "none"):
        done = command("cluster", "grow", "broker", "--to", "2")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "muster up --registry embedded" in done.stderr


@pytest.mark.parametrize("words", [["--to", "2"], ["--resume"], ["--abort"]])
def test_ctrl_c_while_no_registry_answers_ends_it_with_one_line(tmp_path: Path, words: list[str]) -> None:
    command = Command(tmp_path / "i")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENT_S)
        command.environment["MUSTER_REGISTRY__URL"] = f"zk://127.0.0.1:{silent.getsockname()[1]}"
        with command.start("cluster", "grow", "router", *words, stderr=subprocess.PIPE) as growing, silent.accept()[0]:
            growing.send_signal(signal.SIGINT)
            _, said = growing.communicate(timeout=PATIENT_S)
    assert (growing.returncode, said.count("\n")) == (75, 1), said
    assert said.startswith("muster: the growth continues")


def test_what_grew_is_there_when_the_instance_starts_again_as_it_did_before(tmp_path: Path) -> None:
    muster = Command(tmp_path / "i")
    with muster.up("--brokers", "1x2"):
        assert muster("cluster", "grow", "broker", "--to", "2", "--grace", "0").returncode == 0
    with muster.up("--brokers", "1x2") as again:
        assert names(muster) == {"proxy", "gateway", "router", "broker", "broker-1", "broker-2", "broker-3"}
        found = layer(muster)
        assert (found["partitions"], [node["partition"] for node in found["nodes"]]) == (2, [0, 0, 1, 1])
        assert muster("cluster", "grow", "broker", "--to", "4", "--grace", "0").returncode == 0
        again.kill()
    with muster.up("--brokers", "1x2"):
        assert len(layer(muster)["nodes"]) == 8
    refused = muster("up", "--brokers", "8x2")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].endswith(
        "cannot start: registry embedded: broker/main has 4 partitions, but up.brokers asks for 8; start it with 4, and "
        "run muster cluster grow broker --to 8 while it runs, or delete "
        f"{muster.folder}/registry.state to start from scratch"
    )


@pytest.mark.parametrize("brokers", ["1x2", "2x2"])
def test_a_growth_that_was_prepared_is_gone_on_with_or_undone_after_the_instance_started_again(
    tmp_path: Path, brokers: str
) -> None:
    muster = Command(tmp_path / "i")
    muster.environment["MUSTER_REGISTRY__SESSION_MS"] = "60000"
    with muster.up("--brokers", "1x2") as first:
        strikes.stop(pid(muster, "proxy"))
        assert ended(muster, signal.SIGKILL, "to 2 partitions: prepare, waits for", "broker", "--to", "2") == -9
        first.kill()
    with muster.up("--brokers", brokers):
        assert layer(muster)["growth"]["step"] == "prepare"
        undone = muster("cluster", "grow", "broker", "--abort")
        assert (undone.returncode, undone.stdout) == (0, "broker/main has 1 partition\n"), undone.stderr
        assert names(muster) == {"proxy", "gateway", "router", "broker", "broker-1"}
        assert muster("cluster", "grow", "broker", "--to", "2", "--grace", "0").returncode == 0


def test_a_folder_that_another_instance_had_gives_its_numbers_to_the_new_one(tmp_path: Path) -> None:
    muster = Command(tmp_path / "i")
    for name in ("one", "other"):
        muster.environment["MUSTER_INSTANCE__NAME"] = name
        with muster.up():
            assert names(muster) == {"proxy", "gateway", "router", "broker"}
