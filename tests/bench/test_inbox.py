"""The bench of inboxes, small: every figure is there, and every goal is judged."""

import pytest

from bench import inbox


def test_entries_streams_pages_and_broadcasts_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"REQUESTS": 2, "PROBES": 3, "HELD": 60, "PAGES": 3, "CONNECTED": 20, "BROADCASTS": 5}
    for name, count in small.items():
        monkeypatch.setattr(inbox, name, count)
    found = inbox.run(rounds=1, quick=False)
    goals = [case for case in found if case.goal]
    assert len(goals) == 4
    assert all(case.goal and case.goal.startswith("SITE-4 ") for case in goals)
    assert all(case.value > 0 for case in found)
