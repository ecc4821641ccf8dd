"""The account of probes by a clock of its own: windows, the alarm, its end, and samples that do not count."""

import random
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from muster_server.systems.probes.counts import WORST, ProbeCounts
from muster_server.systems.probes.paths import GRACE_S, Account, Figures, Ledger, Path
from muster_server.systems.probes.system import Probes

LIMITS = Probes(timeout_ms=1_000, failures=3, successes=2, window=10)
PROXY, BROKER, OTHER_BROKER, GATEWAY, OTHER_GATEWAY = 4, 2, 6, 3, 7
PATH = Path(PROXY, BROKER, GATEWAY)


class Probed:
    """A ledger, and one probe a second."""

    def __init__(self, limits: Probes = LIMITS) -> None:
        self.told: list[tuple[Path, bool]] = []
        self.ledger = Ledger(limits, lambda figures: self.told.append((figures.path, figures.failing)))
        self.now = 100.0

    def probe(self, ms: float | None = 1.0, by: int = BROKER) -> None:
        """A probe that is seen after this time, or never."""
        number = self.ledger.send(self.now, PROXY, BROKER, [GATEWAY])
        if ms is not None:
            self.ledger.saw(self.now + ms / 1000, number, GATEWAY, by)
        self.now += 1.0
        self.ledger.pass_time(self.now)

    def figures(self, path: Path = PATH) -> Figures:
        return next(figures for figures in self.ledger.figures(self.now) if figures.path == path)


def test_loss_and_latencies_are_of_the_last_samples_and_availability_of_all() -> None:
    probed = Probed()
    for ms in (1.0, None, *range(10, 110, 10)):
        probed.probe(ms)
    figures = probed.figures()
    assert (figures.sent, figures.seen, figures.loss) == (12, 11, 0.0)
    assert figures.availability == 11 / 12
    assert [round(ms or 0.0) for ms in (figures.p50_ms, figures.p99_ms, figures.last_ms)] == [50, 100, 100]
    probed.probe(None)
    figures = probed.figures()
    assert (round(figures.loss, 6), figures.last_ms) == (0.1, None)
    assert figures.age_s == 0.0
    probed.now += 5
    assert probed.figures().age_s == 5.0


def test_the_worst_paths_are_found_without_a_look_at_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, gateways = Ledger(LIMITS), range(1_000)
    for now in range(10, 35):
        number = ledger.send(now, PROXY, BROKER, gateways)
        for gateway in gateways:
            slow = 0.5 if (gateway, now) in {(7, 20), (8, 30)} else 0.0  # of 7 none of the window any more
            if gateway != 5 and (gateway, now) != (6, 32):
                ledger.saw(now + slow + 0.001, number, gateway, BROKER)
        ledger.pass_time(now + 1)
    looked, figures = list[Path](), Account.figures

    def look(account: Account, path: Path, now: float) -> Figures:
        looked.append(path)
        return figures(account, path, now)

    monkeypatch.setattr(Account, "figures", look)
    worst = list(ledger.worst(35.0, 3))
    assert [each.path.gateway for each in worst] == [5, 6, 8]
    assert [(each.failing, each.loss) for each in worst] == [(True, 1.0), (False, 0.1), (False, 0.0)]
    assert (len(looked), ledger.failing) == (3, 1)
    prober: Any = SimpleNamespace(
        ledger=ledger, paths=1_000, left_out=0, worst=ledger.worst, names=lambda: {5: "gateway-1"}
    )
    gauges = {name: value for name, _, value in ProbeCounts(prober).gauges()}
    assert (len(looked), gauges["probe_paths_failing"]) == (3 + WORST, 1)
    assert sum(name.startswith("probe_path_p99_seconds") for name in gauges) == WORST
    assert any('gateway="5",gateway_name="gateway-1"' in name for name in gauges)


def test_what_is_known_of_a_window_is_what_is_in_it() -> None:
    chance, window, had = random.Random(7), 10, list[int | None]()
    account = Account(0.0, window)
    for turn in range(2_000):
        if turn % 50 == 49:
            window = chance.randint(1, 20)
            account.keep(window)
        had = [*had, chance.choice((None, chance.randint(1, 99)))][-window:]
        account.take(float(turn), had[-1], LIMITS)
        _, loss, _, slowest = account.badness()
        assert (loss, slowest) == (had.count(None) / len(had), max(ms or 0 for ms in had))


def test_a_probe_is_a_sample_of_the_path_to_each_gateway() -> None:
    probed = Probed()
    for _ in range(4):
        number = probed.ledger.send(probed.now, PROXY, BROKER, [GATEWAY, OTHER_GATEWAY])
        probed.ledger.saw(probed.now, number, GATEWAY, BROKER)
        probed.ledger.saw(probed.now, number, GATEWAY, BROKER)
        probed.now += 1
        probed.ledger.pass_time(probed.now)
    there, other = probed.figures(), probed.figures(Path(PROXY, BROKER, OTHER_GATEWAY))
    assert (there.sent, there.seen) == (4, 4), "a second sighting is none"
    assert (other.sent, other.seen, other.loss) == (2, 0, 1.0), "but for those of the grace"


def test_failures_in_a_row_raise_the_alarm_and_seen_ones_in_a_row_clear_it() -> None:
    probed = Probed()
    for ms in (1, None, None, 1, None, None):
        probed.probe(ms)
    assert probed.told == []
    probed.probe(None)
    assert probed.told == [(PATH, True)]
    for ms in (None, 1, None, 1):
        probed.probe(ms)
    assert (len(probed.told), probed.figures().failing) == (1, True), "one that comes and goes stays alarmed"
    probed.probe(1)
    assert probed.told == [(PATH, True), (PATH, False)]
    assert (probed.figures().failing, probed.figures().failures) == (False, 1)


def test_other_limits_are_in_force_from_the_next_sample_on_and_the_last_ones_stay() -> None:
    probed = Probed()
    for ms in (None, None, *range(1, 13), None):
        probed.probe(ms)
    assert probed.told == []
    probed.ledger.limit(Probes(timeout_ms=1_000, failures=2, successes=1, window=12))
    assert round(probed.figures().loss, 6) == 0.1, "of the ten that it had"
    probed.probe(None)
    assert probed.told == [(PATH, True)]
    assert round(probed.figures().loss, 6) == round(2 / 11, 6)
    probed.probe(7.0)
    assert probed.told == [(PATH, True), (PATH, False)]
    probed.ledger.limit(Probes(timeout_ms=1_000, failures=2, successes=1, window=3))
    figures = probed.figures()
    assert (round(figures.loss, 6), figures.last_ms, figures.sent) == (round(2 / 3, 6), 7.0, 15)


def test_a_probe_that_another_broker_numbered_is_a_failure_of_the_path() -> None:
    probed = Probed()
    probed.probe()
    for _ in range(3):
        probed.probe(by=OTHER_BROKER)
    assert probed.told == [(PATH, True)]


def test_what_comes_after_its_time_has_failed() -> None:
    probed = Probed()
    probed.probe()
    late = probed.ledger.send(probed.now, PROXY, BROKER, [GATEWAY])
    probed.ledger.pass_time(probed.now + 0.999)
    assert probed.figures().sent == 1
    probed.ledger.pass_time(probed.now + 1.0)
    probed.ledger.saw(probed.now + 1.1, late, GATEWAY, BROKER)
    assert (probed.figures().sent, probed.figures().seen) == (2, 1)


def test_what_set_out_before_a_path_was_seen_says_nothing_until_the_grace_is_over() -> None:
    probed = Probed()
    probed.probe(None)
    assert probed.figures().sent == 0
    probed.probe()
    probed.probe(None)
    assert (probed.figures().sent, probed.figures().seen) == (2, 1), "seen once, it can fail"
    never = Probed()
    for _ in range(int(GRACE_S) + 3):
        never.probe(None)
    assert never.told == [(PATH, True)], "one that is never seen fails after the grace"


def test_a_move_of_rooms_says_nothing_of_a_path() -> None:
    probed = Probed()
    probed.probe()
    probed.ledger.send(probed.now, PROXY, BROKER, [GATEWAY])
    probed.ledger.excuse(probed.now, BROKER)
    probed.now += 1
    probed.ledger.pass_time(probed.now)
    probed.probe(None)
    assert (probed.figures().sent, probed.figures().seen) == (1, 1)
    for _ in range(3):
        probed.probe(None)
    assert probed.told == [(PATH, True)], "a broker that is not reached after its grace fails"


def test_a_path_ends_with_any_of_its_nodes() -> None:
    for left in ({4}, {2}, {3}), ((), {2}, {3}), ({4}, (), {3}), ({4}, {2}, ()):
        probed = Probed()
        number = probed.ledger.send(probed.now, PROXY, BROKER, [GATEWAY])
        probed.ledger.keep(*left)
        probed.ledger.saw(probed.now, number, GATEWAY, BROKER)
        assert len(list(probed.ledger.figures(probed.now))) == all(left)


def test_memory_is_bounded_by_the_window_and_the_time_out() -> None:
    probed = Probed(LIMITS)
    for at in count():
        probed.probe(None)
        assert len(probed.ledger._out) <= 1
        if at == 1_000:
            break
    assert len(probed.ledger._accounts[PATH]._window) == LIMITS.window
