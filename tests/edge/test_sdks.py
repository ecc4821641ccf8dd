"""Unchanged SDKs of Centrifuge against the edge's protocol and against a real edge, each in both encodings."""

from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest

import muster
from tests.documents import fenced
from tests.edge import sdks
from tests.edge.hub import hub
from tests.edge.python_watcher import watching
from tests.edge.role import Role, role
from tests.edge.sdks import Given
from tests.waiting import PATIENT_S, until_asked

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
OF_ROLE: Final = {
    "js": (
        "sends_to_all_tabs_of_a_user_and_hears_of_each",
        "tells_positions_of_a_room",
        "shows_headers_as_tags",
        "gets_what_a_filter_lets_through",
        "tells_the_gaps_of_a_room_once",
        "starts_at_the_head_with_a_position_ahead_of_it",
        "takes_a_message_as_the_difference_to_the_one_before",
        "is_told_of_each_right_that_it_lacks",
        "tells_members_a_command_and_hears_how_many_have_it",
        "asks_a_responder_and_is_one",
        "hears_who_comes_and_who_leaves",
        "is_subscribed_to_the_rooms_of_its_token",
    ),
    "python": (
        "gets_what_a_filter_lets_through",
        "sends_to_a_user_that_is_not_there",
        "hears_who_comes_and_who_leaves",
        "is_subscribed_to_the_rooms_of_its_token",
    ),
    "go": (
        "sends_to_all_tabs_of_a_user_and_hears_of_each",
        "hears_who_comes_and_who_leaves",
        "is_subscribed_to_the_rooms_of_its_token",
    ),
}
"""Cases of what the hub in memory has not: rights, devices, commands and calls."""
ENCODINGS: Final = ("json", "protobuf")
CASES: Final = [(sdk, encoding, case) for sdk in MORE for encoding in ENCODINGS for case in (*EVERY, *MORE[sdk])]
CASES_OF_ROLE: Final = [
    *CASES,
    *((sdk, encoding, case) for sdk in MORE for encoding in ENCODINGS for case in OF_ROLE[sdk]),
]


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    with hub() as url:
        yield url


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    with role(tmp_path_factory.mktemp("edge")) as made:
        yield made


@pytest.fixture(scope="module")
def edge(serving: Role) -> tuple[str, Given]:
    return serving.url, serving.given


@cache
def outcomes(sdk: str, encoding: str, url: str, given: Given, cases: tuple[str, ...]) -> dict[str, str | None]:
    """The outcomes of these cases of an SDK, which run once."""
    return dict.fromkeys(cases, "not run, as an earlier case hung") | sdks.run(sdk, url, encoding, given, cases)


@pytest.mark.parametrize(("sdk", "encoding", "case"), CASES)
def test_an_unchanged_sdk_works_with_the_protocol(sdk: str, encoding: str, case: str, hub_url: str) -> None:
    sdks.need(sdk)
    said = outcomes(sdk, encoding, hub_url, Given(), (*EVERY, *MORE[sdk]))
    assert said[case] is None, said[case]


@pytest.mark.parametrize(("sdk", "encoding", "case"), CASES_OF_ROLE)
def test_an_unchanged_sdk_works_with_a_real_edge(sdk: str, encoding: str, case: str, edge: tuple[str, Given]) -> None:
    sdks.need(sdk)
    said = outcomes(sdk, encoding, *edge, (*EVERY, *MORE[sdk], *OF_ROLE[sdk]))
    assert said[case] is None, said[case]


@pytest.mark.parametrize("sdk", MORE)
def test_every_case_of_a_program_is_listed(sdk: str) -> None:
    sdks.need(sdk)
    assert sdks.names(sdk) == {*EVERY, *MORE[sdk], *OF_ROLE[sdk]}


def test_the_responder_of_the_page_is_the_one_of_the_program() -> None:
    (text,) = [each for each in fenced((sdks.ROOT / "docs" / "requests.md").read_text(), "js") if "respond(" in each]
    assert text in (sdks.PROGRAMS / "js" / "cases.mjs").read_text()


def test_the_filter_of_the_page_is_the_one_of_the_program() -> None:
    (text,) = [each for each in fenced((sdks.ROOT / "docs" / "edge.md").read_text(), "js") if "euros" in each]
    program = (sdks.PROGRAMS / "js" / "cases.mjs").read_text()
    filter_of_data, filter_of_tags = text.splitlines()[:2]
    assert filter_of_data in program
    assert filter_of_tags.removeprefix("const ") in program


async def test_a_client_whose_session_an_operator_ends_stays_away_and_another_device_stays(serving: Role) -> None:
    phone, laptop = (serving.token(31, device=name) for name in ("phone", "laptop"))
    async with (
        watching(serving.url, phone, "small:hall") as ended,
        watching(serving.url, laptop, "small:hall") as other,
    ):
        words = ("presence", "end", "31", "--device", "phone")
        await until_asked(lambda: serving.instance.ran(*words).stdout == b"ended: phone\n", PATIENT_S)
        await ended.until(lambda: ended.all("disconnected"))
        assert ended.all("disconnected") == [{"event": "disconnected", "code": 3503, "reason": "force disconnect"}]
        async with muster.connect(serving.instance.folder.path, gateways=[]) as client:
            await client.publish("small:hall", b"still here")
        await other.until(lambda: other.all("publication"))
        assert not other.all("disconnected")
