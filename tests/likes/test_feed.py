"""Pages of feeds by way of the binding and of RESP, beside a model of plain lists."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster_server._engines import LikesEngine
from tests.reference.likes import Likes

NOW_MS = 1_790_000_000_000
ITEMS = (b"share:1", b"share:2", b"comment:1", b"plain")
USERS = (*range(12), 1 << 40, (1 << 64) - 1)


def command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))


def parsed(reply: bytes) -> Any:
    """The one value of a reply in RESP2."""

    def value(at: int) -> tuple[Any, int]:
        end = reply.index(b"\r\n", at)
        kind, number, after = reply[at : at + 1], reply[at + 1 : end], end + 2
        if kind == b"*":
            values = []
            for _ in range(int(number)):
                each, after = value(after)
                values.append(each)
            return values, after
        if kind == b"$":
            size = int(number)
            return (None, after) if size < 0 else (reply[after : after + size], after + size + 2)
        if kind == b"+":
            return number, after
        assert kind == b":", reply
        return int(number), after

    found, end = value(0)
    assert end == len(reply)
    return found


class Pages(RuleBasedStateMachine):
    """An engine whose log is a list, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.log = Likes(), list[tuple[bytes, int]]()
        self.start(None)

    def start(self, snapshot: bytes | None) -> None:
        self.engine = LikesEngine(folder=None, epoch=1, snapshot=snapshot)
        self.connection = self.engine.connect()

    def ask(self, *words: bytes) -> Any:
        self.engine.feed(self.connection, command(*words), NOW_MS)
        while (batch := self.engine.begin_batch()) is not None:
            self.log.append(batch)
            self.engine.batch_is_durable(self.engine.offset(), NOW_MS)
        return parsed(self.engine.take(self.connection, NOW_MS)[0])

    @rule(item=st.sampled_from(ITEMS), user=st.sampled_from(USERS), likes=st.booleans())
    def toggle(self, item: bytes, user: int, likes: bool) -> None:
        was = self.ask(b"SETBIT", item, b"%d" % user, b"%d" % likes)
        assert bool(was) == self.model.put(item, user, likes)

    @rule(item=st.sampled_from(ITEMS))
    def delete(self, item: bytes) -> None:
        assert bool(self.ask(b"DEL", item)) == self.model.delete(item)

    @rule()
    def restart(self) -> None:
        """From a snapshot."""
        self.start(self.engine.snapshot())

    @rule()
    def replay(self) -> None:
        """From the log."""
        self.start(None)
        for payload, _count in self.log:
            self.engine.replay(self.engine.offset(), payload)

    @rule(
        items=st.lists(st.sampled_from((*ITEMS, b"absent")), min_size=1, max_size=8),
        viewer=st.sampled_from((*USERS, 7_777, None)),
        newest=st.integers(0, 10),
    )
    def page(self, items: list[bytes], viewer: int | None, newest: int) -> None:
        wanted = self.model.feed(items, viewer, newest)
        assert self.engine.feed_page(items, viewer, newest) == wanted
        before = self.engine.figures()
        said = self.ask(b"LIKE.FEED", b"-" if viewer is None else b"%d" % viewer, b"%d" % newest, *items)
        assert self.entries(said) == wanted
        after = self.engine.figures()
        assert (after["feeds"], after["feed_items"]) == (before["feeds"] + 1, before["feed_items"] + len(items))

    @staticmethod
    def entries(said: Sequence[Any]) -> list[tuple[int, bool | None, list[int]]]:
        return [(count, None if likes is None else bool(likes), list(map(int, users))) for count, likes, users in said]

    @invariant()
    def every_item_is_as_in_the_model(self) -> None:
        assert self.engine.feed_page(list(ITEMS), 1, 10) == self.model.feed(ITEMS, 1, 10)


TestPages = Pages.TestCase


def test_no_page_has_more_than_ten_newest_likers() -> None:
    machine = Pages()
    for user in range(20):
        machine.toggle(b"share:1", user, True)
    assert machine.engine.feed_page([b"share:1"], None, 1 << 40) == [(20, None, list(range(19, 9, -1)))]
