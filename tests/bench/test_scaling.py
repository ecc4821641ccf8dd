"""docs/scaling.md: its plans are what `muster size` prints, and its limits those of the core."""

import re

import pytest

from muster_server.control.cli import size
from muster_server.control.size.plan import Machine
from muster_server.systems.rooms.size import MEMBERSHIPS_MAX, SESSIONS_MAX
from tests.documents import ROOT, fenced

PAGE = (ROOT / "docs" / "scaling.md").read_text()


@pytest.mark.parametrize(("number", "members"), [(1, 1e7), (2, 1e8)])
def test_plans_on_the_page_are_those_that_the_command_prints(
    number: int, members: float, capsys: pytest.CaptureFixture[str]
) -> None:
    size.size({"members": members, "each": 2, "rate": members / 100}, Machine(), None, False, False)
    printed = " ".join(capsys.readouterr().out.split())
    assert " ".join(fenced(PAGE, "")[number].split()) == printed


def test_the_limits_of_the_plan_are_those_of_the_core() -> None:
    limits = (ROOT / "core" / "rooms" / "src" / "limits.rs").read_text()
    sessions = (ROOT / "core" / "transport" / "src" / "sessions.rs").read_text()
    assert "ROOMS_MAX: usize = 4 << 20;" in limits
    assert "SESSIONS_MAX: usize = 1 << 20;" in sessions
    assert (MEMBERSHIPS_MAX, SESSIONS_MAX) == (4 << 20, 1 << 20)


def test_the_costs_on_the_page_are_the_shipped_ones() -> None:
    from muster_server.systems.rooms.size import Costs

    costs = Costs()
    rows = re.findall(r"^\| [^|]* \| ([^|]*µs[^|]*) \|", PAGE, re.MULTILINE)[:5]
    assert rows == [
        f"{costs.datagram_us:g} µs",
        f"{costs.copy_us:g} µs",
        f"{costs.publish_alone_us:g} µs; {costs.publish_us:g} µs",
        f"{costs.keepalive_us:g} µs",
        f"{costs.review_us:g} µs; {costs.gain_us:g} µs",
    ]
