"""The bench of the cache, small: every figure is there, and every goal is judged."""

import pytest

from bench import cache
from bench.peers import Missing, Redis


def test_hits_misses_drops_and_a_scan_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside dogpile alone: the others leave connections open, and warn."""
    try:
        Redis.find()
    except Missing as missing:
        pytest.skip(str(missing))
    for name, small in {"HITS": 200, "GETS": 50, "MISSES": 2, "DROPS": 3, "SCANNED": 1_000}.items():
        monkeypatch.setattr(cache, name, small)
    monkeypatch.setattr(cache, "NEAR", {name: cache.NEAR[name] for name in ("muster", "dogpile")})
    monkeypatch.setattr(cache, "STAMPEDE", {"muster": "muster"})
    found = cache.run(rounds=1, quick=False)
    assert len([case for case in found if case.goal is not None]) == 7
    assert all(case.goal.startswith("SITE-1 ") for case in found if case.goal)
    cases = {case.name: case for case in found}
    assert cases["a hit at level 1, over dogpile"].value > 0
    # What no clock judges.
    assert cases["loads of a miss, 200 callers in 4 processes, most, worst round"].holds
    assert cases["a scan of absent ids: loads an absent id, worst round"].holds
    assert cases["a scan of absent ids: level 1 over its bound, worst round"].holds
