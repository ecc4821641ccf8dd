"""The texts of users, as nodes know them: asked for once, some at a time."""

from collections.abc import Iterable, Sequence

import pytest

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.control.terminal.texts import AGAIN_S, Texts
from muster_server.plane.users import HASHED


def node(name: str, role: str) -> Process:
    """A node of an instance."""
    return Process(
        name=name,
        role=role,
        node=1,
        partition=0,
        pid=1,
        epoch=1,
        restarts=0,
        ready=True,
        link=("127.0.0.1", 1),
        admin=("127.0.0.1", 1),
    )


class Doors:
    """A gateway and a proxy that have seen some users, beside a broker that must not be asked."""

    def __init__(self, gateway: dict[int, str], proxy: dict[int, str]) -> None:
        self.texts = {"gateway": gateway, "proxy": proxy}
        self.asked: list[tuple[str, list[int]]] = []

    async def look(self) -> Iterable[Process]:
        return [node("gateway", "gateway"), node("proxy", "proxy"), node("broker", "broker")]

    def all(self, processes: Sequence[Process], path: str) -> list[object]:
        users = [int(each) for each in path.partition("?ids=")[2].split(",")]
        self.asked += [(process.name, users) for process in processes]
        return [
            {"users": {str(user): text for user, text in self.texts[process.name].items() if user in users}}
            for process in processes
        ]


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Doors:
    """They stand for all nodes."""
    made = Doors({HASHED + 1: "ann"}, {HASHED + 250: "bob"})
    monkeypatch.setattr(common.Asking, "all", made.all)
    return made


async def test_numbers_are_asked_for_of_nobody(doors: Doors) -> None:
    assert await Texts(doors.look).of([7, HASHED - 1]) == {}
    assert not doors.asked


async def test_texts_come_from_gateways_and_proxies_a_hundred_users_at_a_time(doors: Doors) -> None:
    users = range(HASHED, HASHED + 251)
    assert await Texts(doors.look, {HASHED + 2: "its own"}).of([7, *users]) == {
        HASHED + 1: "ann",
        HASHED + 2: "its own",
        HASHED + 250: "bob",
    }
    assert [(name, len(asked)) for name, asked in doors.asked] == [
        (name, count) for count in (100, 100, 50) for name in ("gateway", "proxy")
    ]


async def test_a_known_text_is_not_asked_for_again_and_an_unknown_one_seldom(doors: Doors) -> None:
    texts = Texts(doors.look)
    for _ in range(3):
        assert await texts.of([HASHED + 1, HASHED + 9]) == {HASHED + 1: "ann"}
    assert len(doors.asked) == 2
    texts._asks_at -= AGAIN_S
    doors.texts["proxy"][HASHED + 9] = "eve"
    assert await texts.of([HASHED + 1, HASHED + 9]) == {HASHED + 1: "ann", HASHED + 9: "eve"}
    assert doors.asked[2:] == [(name, [HASHED + 9]) for name in ("gateway", "proxy")]


async def test_where_no_node_is_found_users_are_numbers() -> None:
    async def look() -> Iterable[Process]:
        raise UserError("none runs")

    assert await Texts(look).of([HASHED]) == {}
