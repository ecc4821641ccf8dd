"""The bench of the portal, small: every figure is there, and every goal is judged."""

import shutil

import pytest

from bench import portal


def test_reads_open_pages_and_kills_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server on this machine")
    small = {"SHARES": 200, "LOOP_S": 1.0, "STREAMS": 20, "TOLD": 1, "LOOKS": 100, "KILLS": 1}
    for name, count in small.items():
        monkeypatch.setattr(portal, name, count)
    found = portal.run(rounds=1, quick=False)
    goals = [case for case in found if case.goal]
    assert len(goals) == 4
    assert all(case.goal and case.goal.startswith("SITE-") for case in goals)
    figures = {case.name: case.value for case in found}
    assert figures["kills: kills"] == 1
    assert figures["kills: edits"] > 0
    assert figures["kills: pages older than the last edit, worst round"] == 0
