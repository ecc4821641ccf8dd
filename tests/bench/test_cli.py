"""The command from outside: text, document and exit codes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import cli, every, limits
from bench.child import python_environment
from bench.peers import Missing, compare
from bench.peers.compare import Claim
from bench.report import Case, Goal, Report
from bench.rounds import Series, VoidRunError
from bench.targets import Latency, Load, Result
from tests.waiting import PATIENT_S

runner = CliRunner()
MISSED = Case.compared("x", Series((5.0,)), Series((10.0,)), Goal("PF-1", ">=", 0.9))
PLAIN = Case.plain("y", Series((1.0,)))


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENT_S, check=False, env=python_environment()
    )


def test_limits_of_this_machine_as_a_document() -> None:
    done = bench("limits", "--quick", "--rounds", "1", "--json", "--check")
    if done.returncode == cli.EXIT_TRY_LATER:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["bench"] == "limits"
    assert document["machine"]["run"]["rounds"] == 1
    values = {case["name"]: case["value"] for case in document["cases"]}
    assert 0 < values["GSO 64 x100, ns"] < values["sendmmsg(64) x100, ns"]
    assert 0 < values["GRO drain of 64 joined, ns"] < values["recvmmsg drain, ns"]
    assert {"getppid, ns", "sendto x1,000, ns", "3 blocking relays x100, server ns"} <= set(values)


def test_a_bad_option_is_a_usage_error() -> None:
    assert bench("limits", "--rounds", "0").returncode == 2
    assert bench("limits", "--loopback", "moon").returncode == 2


@pytest.mark.parametrize("words", [["delay", "--quick"], ["all", "delay"], ["compare", "delay"]])
def test_an_earlier_word_of_a_bench_is_refused_by_the_one_of_now(words: list[str]) -> None:
    done = runner.invoke(cli.app, words)
    assert done.exit_code == 2
    assert "messages" in done.stderr


@pytest.mark.parametrize(
    ("cases", "flags", "code"),
    [
        ((PLAIN,), ["--check"], 0),
        ((MISSED,), ["--check"], 1),
        ((MISSED,), [], 0),
        ((MISSED,), ["--check", "--json"], 1),
    ],
)
def test_check_exits_1_when_a_goal_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, cases: tuple[Case, ...], flags: list[str], code: int
) -> None:
    monkeypatch.setattr(limits, "run", lambda **_: cases)
    assert runner.invoke(cli.app, ["limits", "--loopback", "host", *flags]).exit_code == code


@pytest.mark.parametrize(
    ("error", "code"), [(VoidRunError("x: late"), 75), (OSError("no room"), 1), (Missing("install it"), 69)]
)
def test_what_goes_wrong_is_one_line_and_a_code(monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    def fail(**_: object) -> tuple[Case, ...]:
        raise error

    monkeypatch.setattr(limits, "run", fail)
    done = runner.invoke(cli.app, ["limits", "--loopback", "host"])
    assert done.exit_code == code
    assert done.stderr.count("\n") == 1
    assert str(error) in done.stderr


def test_no_peer_at_all_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    done = runner.invoke(cli.app, ["peers", "--loopback", "host"])
    assert done.exit_code == 69
    for line in ("apt-get install redis-server", "apt-get install nats-server", "apt-get install mosquitto"):
        assert line in done.stderr


class Fake:
    """A target of known speed that notes its calls."""

    def __init__(self, name: str, per_second: float, log: list[str], *, lost: int = 0) -> None:
        self.name = name
        self.per_second = per_second
        self.log = log
        self.lost = lost

    def start(self) -> Sequence[int]:
        self.log.append(f"start {self.name}")
        return [os.getpid()]

    def run(self, load: Load) -> Result:
        self.log.append(f"{self.name} {load.name}")
        latency = Latency(1, 2, 3, 4, 1, 1, 2) if load.mode == "paced" else None
        return Result(10, int(self.per_second), self.lost, 0, 0, 1.0, 10**9, 1 << 20, latency, 1.0)

    def stop(self) -> None:
        self.log.append(f"stop {self.name}")


LOADS = (Load("saturated", 100), Load("paced", 100, rate=1_000_000))
FASTER = Claim("muster", "redis", LOADS[0].name, "deliveries/s", Goal("PF-5", ">", 1.0))


def test_targets_take_turns_and_none_is_asked_for_more_than_it_can() -> None:
    log: list[str] = []
    targets = [Fake("redis", 5e6, log), Fake("mosquitto", 1e5, log)]
    cases = compare.run(targets, LOADS, rounds=2)
    assert log[:2] == ["start redis", "start mosquitto"]
    assert log[-2:] == ["stop mosquitto", "stop redis"]
    assert log[2:4] == ["redis x100 saturated", "mosquitto x100 saturated"]
    assert [line for line in log if "paced" in line] == ["redis x100 paced 1,000,000/s"] * 2
    by_name = {case.name: case for case in cases}
    assert by_name["mosquitto x100 saturated, deliveries/s"].ratio == pytest.approx(0.02)
    assert "redis x100 paced 1,000,000/s, p99 µs" in by_name
    assert "redis x100 saturated, duplicated" not in by_name


@pytest.mark.parametrize(("speed", "holds"), [(6e6, True), (4e6, False)])
def test_a_claim_is_judged_against_its_peer(speed: float, holds: bool) -> None:
    targets = [Fake("redis", 5e6, []), Fake("muster", speed, [])]
    lossless, claimed = [case for case in compare.run(targets, LOADS, rounds=1, claims=[FASTER]) if case.goal]
    assert lossless.holds is True
    assert claimed.holds is holds


def test_a_claim_of_a_target_that_loses_something_does_not_hold() -> None:
    targets = [Fake("redis", 5e6, []), Fake("muster", 6e6, [], lost=1)]
    lossless, _ = [case for case in compare.run(targets, LOADS, rounds=1, claims=[FASTER]) if case.goal]
    assert lossless.holds is False


def test_a_claim_against_a_peer_that_is_not_there_is_not_judged() -> None:
    cases = compare.run([Fake("muster", 1e6, [])], LOADS, rounds=1, claims=[FASTER])
    assert [case.name for case in cases if case.goal] == [f"muster, {LOADS[0].name}, lost in the worst round"]


def test_targets_are_stopped_when_one_does_not_start() -> None:
    log: list[str] = []

    class Broken(Fake):
        def start(self) -> Sequence[int]:
            raise OSError("address in use")

    with pytest.raises(OSError, match="address in use"):
        compare.run([Fake("redis", 1, log), Broken("nats", 1, log)], LOADS, rounds=1)
    assert log == ["start redis", "stop nats", "stop redis"]


def test_loss_is_shown_beside_every_figure() -> None:
    cases = compare.run([Fake("redis", 5e6, [], lost=3)], LOADS[:1], rounds=1)
    assert {case.name: case.value for case in cases}["redis x100 saturated, lost"] == 3


# --- all of them --------------------------------------------------------------------------------------------------------


class Benches:
    """Plays each bench as a program, and keeps what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Sequence[str]] = []
        self.machine = {"cpu": "x", "usable_cores": 2, "memory_bytes": 1 << 30, "kernel": "6", "python": "3"}
        monkeypatch.setattr(every, "ask", self.ask)

    def ask(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        self.asked.append(words)
        quick = "--quick" in words
        report = Report(words[0], {**self.machine, "run": {"rounds": 3, "quick": quick}}, (MISSED, PLAIN))
        match words[0]:
            case "peers":
                return subprocess.CompletedProcess(
                    words, 69, "", "muster bench: no peer is installed: apt-get install x\n"
                )
            case "paced":
                void = replace(report, cases=(PLAIN,), void="paced: the generator is late")
                return subprocess.CompletedProcess(words, 75, void.as_json(), "muster bench: paced: late\n")
            case "hops":
                return subprocess.CompletedProcess(words, 1, "", "Traceback\nRuntimeError: broken\n")
        return subprocess.CompletedProcess(words, 0, report.as_json(), "")


def test_all_benches_run_one_after_another_and_go_on_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    benches = Benches(monkeypatch)
    words = ["all", "limits", "peers", "paced", "likes", "--quick", "--to", str(tmp_path)]
    done = runner.invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    assert "limits: x" in done.stdout
    assert "paced: x" not in done.stdout, "an unfinished run judges nothing"
    assert "peers: muster bench: no peer is installed: apt-get install x" in done.stderr
    assert "paced: the generator is late" in done.stderr
    assert [each[0] for each in benches.asked] == ["limits", "peers", "paced", "likes"]
    again = runner.invoke(cli.app, [*words, "--json", "--check"])
    assert again.exit_code == 1, "goals are missed"
    assert [each[0] for each in benches.asked[4:]] == ["peers", "paced"]
    document = json.loads(again.stdout)
    assert [each["bench"] for each in document["benches"]] == ["limits", "paced", "likes"]
    assert set(document["missing"]) == {"peers", "paced"}
    assert document["benches"][1]["void"] == "paced: the generator is late"
    unfinished = runner.invoke(cli.app, ["all", "paced", "--check", "--to", str(tmp_path)])
    assert unfinished.exit_code == 1, "no goal was judged"
    runner.invoke(cli.app, ["all", "limits", "--to", str(tmp_path)])
    assert list(benches.asked[-1]) == ["limits", "--json", "--no-progress"], "a quick document is no full one"


def test_a_bench_that_breaks_is_named_and_an_unknown_one_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Benches(monkeypatch)
    done = runner.invoke(cli.app, ["all", "hops", "likes", "--to", str(tmp_path)])
    assert done.exit_code == 1
    assert "hops: RuntimeError: broken" in done.stderr
    assert "likes: x" in done.stdout
    wrong = runner.invoke(cli.app, ["all", "hopps", "--to", str(tmp_path)])
    assert wrong.exit_code == 2
    assert "unknown bench 'hopps'" in wrong.output
    assert "expected one of limits, peers, paced" in " ".join(wrong.output.replace("│", " ").split())


def test_a_void_run_is_a_document_with_the_finished_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> tuple[Case, ...]:
        raise VoidRunError("x: late")

    monkeypatch.setattr(limits, "run", fail)
    done = runner.invoke(cli.app, ["limits", "--loopback", "host", "--json"])
    assert done.exit_code == 75
    assert json.loads(done.stdout)["void"] == "x: late"
