"""A node's drain lasts as long as its role's configuration says."""

import pytest

from muster_server.control.cluster.daemon import DRAIN_S
from muster_server.control.cluster.specs import DRAIN_MS, drain_ms
from muster_server.plane.kinds import kind, kinds


def test_a_drain_takes_what_the_role_is_told_and_time_for_the_last_answers() -> None:
    assert drain_ms(kind("edge").options(drain_s=20.0)) == 20_000 + DRAIN_MS
    assert drain_ms(kind("broker").options()) == DRAIN_MS


@pytest.mark.parametrize("role", list(kinds()))
def test_the_drain_of_each_role_fits_into_the_time_that_services_have(role: str) -> None:
    assert drain_ms(kind(role).options()) <= DRAIN_S * 1_000
