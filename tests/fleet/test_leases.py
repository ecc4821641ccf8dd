"""Clients are there exactly as long as their latest epoch gives signs of life."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster_server.systems.fleet.leases import Leases, Renewal

LEASE_MS, HINT_MS = 100, 10


class Beats(RuleBasedStateMachine):
    """Against one dict of (epoch, end)."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases(lease_ms=LEASE_MS, hint_ms=HINT_MS)
        self.now = 0
        self.truth: dict[str, tuple[int, int]] = {}
        self.gone: set[str] = set()

    @rule(client=st.sampled_from("abc"), epoch=st.integers(1, 3))
    def hear(self, client: str, epoch: int) -> None:
        known, until = self.truth.get(client, (0, -1))
        heard = self.leases.renew(self.now, client, epoch)
        if epoch < known:
            assert heard is Renewal.STALE
            return
        assert (heard is Renewal.KEPT) == (epoch == known and client not in self.gone)
        self.truth[client] = (epoch, self.now + LEASE_MS)
        self.gone.discard(client)
        assert until <= self.now + LEASE_MS

    @rule(client=st.sampled_from("abc"), epoch=st.integers(1, 3))
    def hint(self, client: str, epoch: int) -> None:
        known, until = self.truth.get(client, (0, -1))
        shortened = epoch == known and client not in self.gone and until > self.now + HINT_MS
        assert self.leases.hint(self.now, client, epoch) == shortened
        if shortened:
            self.truth[client] = (known, self.now + HINT_MS)

    @rule(ms=st.sampled_from([1, 9, 11, 60, 101]))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule()
    def expire(self) -> None:
        late = {client for client, (_, until) in self.truth.items() if until < self.now} - self.gone
        assert sorted(self.leases.expire(self.now)) == sorted((client, self.truth[client][0]) for client in late)
        self.gone |= late

    @invariant()
    def who_is_there_is_there(self) -> None:
        for client, (epoch, _) in self.truth.items():
            assert self.leases.epoch(client) == (None if client in self.gone else epoch)


TestBeats = Beats.TestCase
TestBeats.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_hints_and_renewals_in_turn_do_not_grow_anything() -> None:
    leases = Leases(lease_ms=LEASE_MS, hint_ms=HINT_MS)
    for now in range(10_000):
        leases.renew(now, "a", 1)
        assert leases.hint(now, "a", 1)
    assert len(leases._ends) <= 100
    assert leases.expire(20_000) == [("a", 1)]


def test_an_epoch_that_ended_is_remembered_until_its_client_is_forgotten() -> None:
    leases = Leases(lease_ms=LEASE_MS, hint_ms=HINT_MS)
    leases.renew(0, "a", 5)
    leases.expire(1000)
    assert leases.renew(1000, "a", 4) is Renewal.STALE
    leases.forget("a")
    assert leases.renew(1000, "a", 4) is Renewal.NEW
    with pytest.raises(ValueError, match="hint_ms"):
        Leases(lease_ms=1, hint_ms=2)
