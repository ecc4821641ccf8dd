"""The bench of the console, small: a page's cost is judged beside the same instance without a page."""

import pytest

from bench import console


def test_the_cost_of_a_page_is_measured_beside_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PAGES", {"rooms": "rooms", "fleet": "fleet"})
    monkeypatch.setattr(console, "SECONDS_QUICK", 0.5)
    monkeypatch.setattr(console, "SETTLE_S", 0.5)
    found = console.run(rounds=1, quick=True)
    assert [case.name for case in found if case.goal] == [f"{page}: {console.COST}" for page in console.PAGES]
    assert all(case.goal == str(console.GOAL) for case in found if case.goal)
    alone = [case.value for case in found if case.name.startswith(console.ALONE)]
    assert len(alone) == 2
    assert all(value > 0 for value in alone), "the demo's nodes and its console work"
