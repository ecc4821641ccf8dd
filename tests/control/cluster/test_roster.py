"""The nodes of an instance, and their limits."""

import pytest

from muster_server.control.cluster.roster import Roster
from muster_server.control.config.layout import FIRST_NUMBERS
from muster_server.control.errors import UserError
from muster_server.plane.kind import PLACES_MAX
from tests.control.nodes import configured


def test_no_node_of_an_instance_gets_a_number_that_a_node_beside_it_may_have() -> None:
    roster = Roster(configured())
    for _ in range(1, PLACES_MAX):
        seat = roster.another("proxy", 0)
    assert seat.node == FIRST_NUMBERS
    with pytest.raises(UserError, match="2500 nodes with the role proxy"):
        roster.another("proxy", 0)


def test_a_partition_that_a_growth_has_begun_with_takes_replicas_until_that_is_given_up() -> None:
    roster = Roster(configured())
    with pytest.raises(UserError, match="broker has no partition 1; its last one is 0"):
        roster.another("broker", 1)
    roster.seats += roster.lacking("broker", 2)
    (only,) = roster.beyond("broker", 1)
    with pytest.raises(UserError, match="broker-1 is the last running node of partition 1 of broker"):
        roster.dispensable(only.node, lambda seat: True)
    other = roster.another("broker", 1)
    roster.seats.append(other)
    assert roster.dispensable(only.node, lambda seat: True) == only
    with pytest.raises(UserError, match="broker has no partition 2; its last one is 1"):
        roster.another("broker", 2)
    with pytest.raises(UserError, match="router has no partition 1; its last one is 0"):
        roster.another("router", 1)
    roster.leaving |= {only, other}
    with pytest.raises(UserError, match="broker has no partition 1; its last one is 0"):
        roster.another("broker", 1)
