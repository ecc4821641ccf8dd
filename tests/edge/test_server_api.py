"""An unchanged `cent` of PyPI against `muster up --with edge,http`, beside clients of the edge."""

import sys
from collections.abc import Mapping
from typing import Final

import pytest

from tests.edge import sdks
from tests.edge.served import Served

CASES: Final = (
    "publishes_to_a_client",
    "broadcasts",
    "tells_a_position_that_a_client_goes_on_from",
    "tells_history_with_the_same_positions",
    "names_the_publisher_of_a_message",
    "counts_clients_of_an_edge",
    "tells_the_nodes_with_clients",
    "does_a_batch",
    "is_refused_what_rooms_cannot_do",
    "is_refused_with_a_wrong_key",
)


@pytest.fixture(scope="module")
def outcomes(served: Served) -> Mapping[str, str | None]:
    """The error of each case; all run once."""
    sdks.need("python")
    key = served.key("publish:*", "history:*", "members:*", "rooms:*")
    words = [sys.executable, str(sdks.PROGRAMS / "python" / "backend.py"), f"{served.http}/api", key]
    return sdks.told([*words, served.url, served.token("7")], {"PYTHONPATH": str(sdks.SDKS / "python")})


@pytest.mark.parametrize("case", CASES)
def test_an_unchanged_library_of_backends_works_with_the_http_face(
    case: str, outcomes: Mapping[str, str | None]
) -> None:
    assert case in outcomes
    assert outcomes[case] is None, outcomes[case]


def test_every_case_of_the_program_is_listed(outcomes: Mapping[str, str | None]) -> None:
    assert outcomes.keys() == {*CASES}
