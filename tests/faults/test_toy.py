"""A system that only the tests have comes up, is seen, changes, grows and ends like any other, by its folder alone."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import forked
from tests.documents import ROOT
from tests.heard import Heard
from tests.waiting import PATIENT_S

MUSTER: Final = (sys.executable, "-m", "muster_server")
CONFIGURATION: Final = """\
[up]
counters = "2x1"
[counter]
step = 3
[probes]
every_ms = 0
[database]
url = "none"
"""


class Toy:
    """An instance with the toy beside rooms."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "muster.toml"
        self.file.write_text(CONFIGURATION)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        self.environment |= {
            "MUSTER_SYSTEMS": "tests.toy",
            "MUSTER_INSTANCE__DIR": str(folder / "instance"),
            "MUSTER_CONFIG": str(self.file),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = forked.server("tests.toy.command").run(words, self.environment | environment, seconds=PATIENT_S)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def said(self, *words: str) -> Any:
        """What a command says in JSON."""
        done = self(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def nodes(self) -> dict[str, dict[str, Any]]:
        """By name, what `muster status` says of each."""
        return {each["name"]: each for each in self.said("status")["nodes"]}

    @contextlib.contextmanager
    def process(self, *words: str, until: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], Heard]]:
        """A command that runs on, once a line of its stderr has this text; and its stderr."""
        with subprocess.Popen(
            [*MUSTER, *words], cwd=ROOT, env=self.environment | environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            heard = Heard(process.stderr)
            try:
                heard.next(lambda line: until in line)
                yield process, heard
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait(PATIENT_S)
                heard.rest()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("toy"))


def fetched(node: dict[str, Any], path: str) -> str:
    """A page of a node's administration."""
    with urllib.request.urlopen(node["admin"] + path, timeout=PATIENT_S) as answer:
        return str(answer.read().decode())


def test_a_toy_comes_up_beside_rooms_and_is_seen_changed_grown_served_and_ended(toy: Toy) -> None:
    with toy.process("up", "--with", "toy", until="Ctrl-C") as (process, heard):
        names = {"counter", "counter-1", "window", "router", "broker", "gateway", "proxy"}
        nodes = toy.nodes()
        assert names <= nodes.keys() <= {*names, "clock"}
        assert {nodes[name]["state"] for name in names} == {"ready"}
        counters = [nodes["counter"]["node"], nodes["counter-1"]["node"]]
        assert nodes["counter"]["nodes"] == counters, "it hears of its own kind, and of no node of rooms"
        assert nodes["counter"]["layers"] == {"counter": [2, 0]}
        assert nodes["window"]["counters"] == 2, "it is in the registry, and so is what the registry says of others"
        assert all(node["registry"]["session"] == "connected" for node in nodes.values())

        where = toy.said("status")["systems"]["toy"]
        with socket.create_connection((where["host"], where["port"]), PATIENT_S) as connection:
            assert connection.recv(64) == b"hello"
        assert json.loads(fetched(nodes["counter"], "/api/v1/toy"))["counted"] > 0
        for name, metric in (("counter", "toy_counted_total"), ("window", "toy_shown_total")):
            page = fetched(nodes[name], "/metrics")
            labels = f'name="muster-{name}",node="{nodes[name]["node"]}",role="{name}"'
            assert f"muster_{metric}{{{labels}}}" in page
            assert "muster_ready{" in page

        layers = {each["layer"]: each for each in toy.said("cluster", "show")["layers"]}
        assert [node["name"] for node in layers["counter"]["nodes"]] == ["counter", "counter-1"]
        assert layers["counter"]["nodes"][0]["per_s"] is not None
        assert [node["name"] for node in layers["window"]["nodes"]] == ["window"]
        assert "counter" in {row["name"] for row in toy.said("top", "--once")["nodes"]}
        assert "window" in toy("doctor").stdout + toy("status").stdout

        toy.file.write_text(CONFIGURATION.replace("step = 3", "step = 7"))
        process.send_signal(signal.SIGHUP)
        told = dict[str, dict[str, int]]()
        while len(told) < 1 + len(counters):  # the supervisor and both counters, in any order
            said = json.loads(heard.next(lambda line: '"reloaded"' in line))
            if said["role"] in {"supervisor", "counter"}:
                told[f"{said['role']} {said.get('node', '')}"] = said["in_force"]
        assert list(told.values()) == [{"counter.step": 7}] * len(told)
        assert toy.nodes()["counter"]["step"] == 7

        added = toy("cluster", "replica", "add", "counter", "1")
        assert (added.returncode, added.stdout.split()[:2]) == (0, ["counter-2", "runs,"]), added.stderr
        assert len(toy.nodes()["counter"]["nodes"]) == 3
        removed = toy("cluster", "replica", "remove", "counter", "1", "counter-2")
        assert (removed.returncode, "counter-2 has ended" in removed.stdout) == (0, True), removed.stderr
        grown = toy("cluster", "grow", "counter", "--to", "4", "--grace", "0")
        assert grown.returncode == 0, grown.stderr
        assert toy.nodes()["counter"]["layers"] == {"counter": [4, 0]}
        assert len(toy.nodes()["counter"]["nodes"]) == 4

        served = {"MUSTER_REGISTRY__URL": "embedded", "MUSTER_SERVE__DIR": str(toy.folder / "hosts")}
        with toy.process("serve", "window", "--name", "elsewhere", until='"registered"', **served) as (other, beside):
            assert toy("cluster", "show").stdout.count("elsewhere") == 1
            other.terminate()
            assert other.wait(PATIENT_S) == 0
        assert any('"ended"' in line for line in beside.lines)
        process.terminate()
        assert process.wait(PATIENT_S) == 0
    assert not any('"error"' in line.partition('"level"')[2][:12] for line in heard.lines)


def test_the_command_and_the_documents_have_what_is_the_toy_s(toy: Toy) -> None:
    assert toy("toy", "hello").stdout == "hello from the toy\n"
    page = toy("config", "docs").stdout
    for line in ("## [counter]", "## [window]", "## [clock]", "| `counters` |", "| `counter_partitions` |"):
        assert line in page
    (step,) = [line for line in page.splitlines() if line.startswith("| `step` |")]
    assert "`2`" in step, "what the system presets for muster up"
    assert step.endswith("| reloaded |")
    assert "--counters" in toy("up", "--help").stdout
    assert "counter" in toy("serve", "--help").stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("up", "--with", "toys"), 78, "no system 'toys'; did you mean toy?"),
        (("up", "--counters", "3"), 78, "number of partitions 3"),
        (("serve", "clock", "--partition", "1"), 2, "--partition: a clock has no partition"),
    ],
)
def test_a_mistake_is_one_line(toy: Toy, words: tuple[str, ...], code: int, text: str) -> None:
    done = toy(*words)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert text in done.stderr
