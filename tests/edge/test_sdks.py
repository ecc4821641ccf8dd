"""Unchanged SDKs of Centrifuge against the edge's protocol, each in both encodings."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import pytest

from tests.edge import sdks
from tests.edge.hub import hub

EVERY: Final = (
    "connects",
    "publishes_and_receives_in_order",
    "tells_history",
    "recovers_what_it_missed",
    "says_when_it_cannot_recover",
    "unsubscribes_and_hears_no_more",
    "gets_an_error_for_an_unknown_method",
    "is_refused_with_a_wrong_token",
    "brings_another_token_for_one_that_has_expired",
)
"""The cases of all SDKs, the easiest first."""
MORE: Final = {
    "js": (
        "names_the_publisher",
        "sends_a_batch_of_commands",
        "counts_who_is_present",
        "stays_subscribed_after_leaving_and_coming_in_a_hurry",
        "goes_on_from_the_position_of_the_application",
        "asks_for_the_state_when_it_cannot_recover",
        "takes_large_messages",
        "reads_many_rooms_by_one_connection",
    ),
    "python": ("counts_who_is_present",),
    "go": (),
}
CASES: Final = [
    (sdk, encoding, case) for sdk, more in MORE.items() for encoding in ("json", "protobuf") for case in (*EVERY, *more)
]


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    with hub() as url:
        yield url


@cache
def outcomes(sdk: str, encoding: str, url: str) -> Mapping[str, str | None]:
    """The outcomes of all cases of an SDK, which run once."""
    return sdks.run(sdk, url, encoding, "someone", "smallhistory")


@pytest.mark.parametrize(("sdk", "encoding", "case"), CASES)
def test_an_unchanged_sdk_works_with_the_protocol(sdk: str, encoding: str, case: str, hub_url: str) -> None:
    sdks.need(sdk)
    said = outcomes(sdk, encoding, hub_url)
    assert case in said
    assert said[case] is None, said[case]


@pytest.mark.parametrize("sdk", MORE)
def test_every_case_of_a_program_is_listed(sdk: str, hub_url: str) -> None:
    sdks.need(sdk)
    assert outcomes(sdk, "json", hub_url).keys() == {*EVERY, *MORE[sdk]}
