"""Chromium with the unchanged SDK against `muster up --demo --with edge`: pages, tabs, and what happens to them."""

import sys
from collections.abc import Mapping
from typing import Final

import pytest

from tests.edge import browsers, sdks
from tests.edge.served import Served

CASES: Final = (
    "shows_the_lines_of_the_demo",
    "shows_two_visitors_to_each_other",
    "changes_rooms",
    "recovers_what_it_missed_while_offline",
    "keeps_a_frozen_tab",
    "shares_one_connection_among_ten_tabs",
    "renews_its_token",
    "goes_on_after_a_reload_from_its_position",
)


@pytest.fixture(scope="module")
def outcomes(served: Served) -> Mapping[str, str | None]:
    """The error of each case; all run once, in one browser."""
    program = sdks.PROGRAMS / "browser" / "cases.py"
    words = [browsers.chromium(), served.chat, str(served.instance.folder.jwt_secret)]
    return sdks.told([sys.executable, str(program), *words], {})


@pytest.mark.parametrize("case", CASES)
def test_a_browser(case: str, outcomes: Mapping[str, str | None]) -> None:
    assert case in outcomes
    assert outcomes[case] is None, outcomes[case]


def test_every_case_of_the_program_is_listed(outcomes: Mapping[str, str | None]) -> None:
    assert outcomes.keys() == {*CASES}
