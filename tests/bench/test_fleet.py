"""The bench of picks on a small fleet: every figure is there, and every pick was whole."""

import pytest

from bench import fleet_load, fleet_picks
from tests.fleet.mosquitto import needs_mosquitto


def test_picks_are_measured_beside_their_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_picks, "CLIENTS", (2_000,))
    monkeypatch.setattr(fleet_picks, "BOUND_US", {2_000: 50.0})
    monkeypatch.setattr(fleet_picks, "PICKS_QUICK", 100)
    cases = {case.name: case for case in fleet_picks.run(rounds=1, quick=True)}
    assert len(cases) == 7
    deck = cases["100 of 2,000: deck, µs each"]
    assert deck.goal == "PF-18 <= 50"
    for other in (fleet_picks.NUMPY, fleet_picks.SQLITE):
        ratio = cases[f"100 of 2,000: deck over {other}"].ratio
        assert ratio is not None
        assert 0 < ratio < 1


@needs_mosquitto
def test_a_whole_fleet_gives_every_figure_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_load, "CLIENTS_QUICK", 300)
    monkeypatch.setattr(fleet_load, "RUNS_QUICK", 10)
    monkeypatch.setattr(fleet_load, "RATE_QUICK", 3.0)  # three runs at once have all clients
    monkeypatch.setattr(fleet_load, "SPREAD_S", 1.0)
    monkeypatch.setattr(fleet_load, "AFTER_BACK_S", 0.5)
    cases = {case.name.partition(": ")[2]: case for case in fleet_load.run(quick=True)}
    assert cases["clients asked"].value == 10 * fleet_load.PICK
    for figure in (fleet_load.ONLINE, fleet_load.ALL, fleet_load.LATE, fleet_load.GONE):
        assert next(case for name, case in cases.items() if name.startswith(figure)).holds
    for who in ("broker", "harness", "index", "scheduler"):
        assert cases[f"{who}: µs CPU an order with its result"].value > 0
