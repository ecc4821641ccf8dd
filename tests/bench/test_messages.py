"""The bench of delayed messages, small: every figure is there, every goal is judged, and nothing is lost."""

from pathlib import Path

import pytest

from bench import messages, messages_pending
from bench.child import private_directory
from bench.messages_faces import Dramatiq, Face
from bench.messages_loads import FIGURES, accepting, firing, killing, null_server
from bench.report import Report
from bench.sweeps import sweeps
from tests import redis_server

FIRED = 300


@pytest.fixture(autouse=True)
def _redis() -> None:
    redis_server.need()


def test_each_goal_is_judged_and_lateness_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = {"SIZES_QUICK": (200, 2_000), "FIRED": FIRED, "AT_ONCE": 50, "SECONDS_QUICK": 0.1, "OTHERS": ()}
    small |= {"STORE_QUICK": 2_000, "REDIS_QUICK": 2_000, "TIMERS_QUICK": 10_000}
    for name, value in small.items():
        monkeypatch.setattr(messages, name, value)
    monkeypatch.setattr(Face, "lead_ms", 700)
    monkeypatch.setattr(messages_pending, "RESTARTS", 1)
    said: list[str] = []
    cases = {case.name: case for case in messages.run(rounds=1, quick=True, say=said.append)}
    judged = [case.goal.partition(" ")[0] for case in cases.values() if case.goal is not None]
    assert sorted(judged) == ["PF-19"] * 4 + ["PF-20"] * 4 + ["PF-21"] * 4 + ["PF-22"] * 2
    for name in ("10,000 timers: ns for a cancel", "accepted at the store in Redis, messages/s"):
        assert cases[name].value > 0
    assert cases["kill -9 of all processes, muster: lost, worst round"].holds
    assert cases["300 in one second: early, worst round"].holds
    assert cases["2,000 pending: lateness p50, ms"].value >= 0
    late = next(each for each in sweeps(Report("messages", {}, tuple(cases.values()))) if each.name.endswith("p50, ms"))
    assert list(late.curves["Muster"]) == [200.0, 2_000.0]
    assert not said


def test_dramatiq_accepts_fires_and_comes_back(tmp_path: Path) -> None:
    if (why := Dramatiq.lacks()) is not None:
        pytest.skip(why)
    with private_directory("messages") as folder, null_server(tmp_path) as hook:
        face = Dramatiq(Path(folder), hook.port)
        try:
            face.start()
            accepted = accepting(face, 0.1)()
            fired = firing(face, hook, 100, 100)()
            killed = killing(face, hook, 100)
        finally:
            face.stop()
    assert accepted.figures["messages/s"] > 0
    assert not fired.void
    assert fired.figures[FIGURES[0]] >= 0
    assert killed.figures["lost"] == 0
