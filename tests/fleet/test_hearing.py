"""Leases end by the time in which a node could hear, and by no other."""

from muster_server.systems.fleet.hearing import GAP_MS, Hearing


class Steady:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


def test_time_passes_while_it_hears() -> None:
    steady = Steady()
    hearing = Hearing(steady)
    for _ in range(8):
        steady.seconds += 0.25
        hearing.now()
    assert hearing.now() == 2_000


def test_time_without_a_broker_does_not_count() -> None:
    steady = Steady()
    hearing = Hearing(steady)
    steady.seconds += 0.5
    hearing.hears(False)
    steady.seconds += 3_600
    assert hearing.now() == 500
    hearing.hears(True)
    steady.seconds += 0.5
    assert hearing.now() == 1_000


def test_of_a_time_in_which_the_process_stood_still_a_second_counts() -> None:
    steady = Steady()
    hearing = Hearing(steady)
    steady.seconds += 90
    assert hearing.now() == GAP_MS
