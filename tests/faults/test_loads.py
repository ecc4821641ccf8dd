"""`muster load` of every system, against one real instance, and with a gateway killed under it."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.waiting import PATIENT_S

PIPES: Final[dict[str, Any]] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def load(instance: Instance, *words: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the report and stderr of a load."""
    done = instance.ran("load", *words, "--json", seconds=PATIENT_S)
    return done.returncode, json.loads(done.stdout or b"{}"), done.stderr.decode()


def test_each_system_carries_a_load_whole(make: Make, tmp_path: Path) -> None:
    instance = make(systems={"enabled": "presence,likes,messages,inbox,edge"})
    page = tmp_path / "page.html"
    with instance.running():
        loads: list[tuple[list[str], str, int]] = [
            (["rooms", "--members", "50", "--rooms", "5", "--rate", "200", "--html", str(page)], "delivered", 4_000),
            (["edge", "--members", "50", "--rooms", "5", "--rate", "100"], "delivered", 2_000),
            (["likes", "--items", "20", "--rate", "300"], "done", 600),
            (["messages", "--rate", "50", "--delay", "500ms"], "fired", 100),
            (["presence", "--users", "20", "--rate", "50"], "done", 100),
            (["inbox", "--users", "20", "--rate", "100"], "read_again", 200),
        ]
        for words, done, expected in loads:
            code, report, said = load(instance, *words, "--for", "2s")
            assert code == 0, (words, report.get("counts"), said)
            assert report["counts"][done] == expected, (words, report["counts"])
            assert report["latency_ms"]["p99"] > 0
            assert report["ended"] == "complete"
        with instance.command("load", "rooms", "--members", "5", "--rooms", "1", "--for", "1h", **PIPES) as running:
            assert running.stdout is not None
            for _ in range(3):
                assert running.stdout.readline()
            running.send_signal(signal.SIGINT)
            printed, said_at_last = running.communicate(timeout=PATIENT_S)
            assert running.wait() == 0, (printed, said_at_last)  # Ctrl-C ends a run with its summary
    assert b"0 lost, 0 out_of_turn, 0 corrupted" in printed
    assert page.read_text().count("<svg") >= 3


def test_a_load_shows_the_loss_of_a_gateway_and_goes_on(make: Make) -> None:
    instance = make(up={"gateways": 2, "processes": "apart"})
    with instance.running():
        words = ["load", "rooms", "--members", "40", "--rooms", "4", "--rate", "200", "--for", "6s", "--json"]
        with instance.command(*words, **PIPES) as running:
            assert running.stderr is not None
            assert b"Ctrl-C" in running.stderr.readline()
            instance.kill("gateway-1")
            printed, _ = running.communicate(timeout=PATIENT_S)
            code = running.wait()
    report = json.loads(printed)
    counts = report["counts"]
    assert counts["sessions_lost"] > 0
    assert counts["corrupted"] == 0
    assert counts["delivered"] + counts["lost"] >= counts["published"] * 10
    assert code in {0, 1}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rooms", "--rooms", "5", "--members", "2"], "--rooms 5 is more than --members 2"),
        (["rooms", "--for", "1x"], "--for"),
        (["rooms", "--assert", "p99"], "for example p99<50ms"),
        (["rooms", "--hosts", "2"], "--listen"),
        (["likes"], "no node of likes runs here"),
        (["inbox"], "no inbox runs here"),
        (["edge"], "no edge runs here"),
        (["edge", "--url", "http://127.0.0.1:1"], "not a URL of an edge"),
        (["edge", "--url", "ws://192.0.2.1:1"], "--i-own-this-target"),
        (["inbox", "--users", "1", "--rate", "10000"], "raise --users"),
        (["--join", "x", "rooms"], "--join"),
    ],
)
def test_a_load_that_cannot_be_says_why(make: Make, words: list[str], said: str) -> None:
    instance = make()
    with instance.running():
        done = instance.ran("load", *words, seconds=PATIENT_S)
    assert done.returncode not in {0, 1}
    assert said in done.stderr.decode()
