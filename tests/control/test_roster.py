"""The nodes that an instance has, and how many it ever may."""

import pytest

from control.errors import UserError
from control.layout import NUMBER_MAX, PLACES_MAX
from control.options import Up
from control.roster import Roster


def test_no_node_of_an_instance_gets_a_number_that_a_node_beside_it_may_have() -> None:
    roster = Roster(Up())
    for _ in range(1, PLACES_MAX):
        seat = roster.another("proxy", 0)
    assert seat.node == NUMBER_MAX
    with pytest.raises(UserError, match="2500 nodes with the role proxy"):
        roster.another("proxy", 0)
