"""A fleet in memory: clients that come, go, answer, are silent, lie and double; every run's account is right."""

import msgspec
import pytest

from muster_server.systems.fleet import schema
from muster_server.systems.fleet.dispatcher import Answer
from muster_server.systems.fleet.leases import Leases
from muster_server.systems.fleet.runs import RunEnd, RunName, Runs, RunsError
from muster_server.systems.fleet.schema import Beat, Bye, Hello, Message, Notice, Order, Receipt, Result, SchemaError
from muster_server.systems.fleet.selector import parse
from tests.fleet.whole import Whole

MINUTE = 29_700_000
CHINA = parse("country=CN")


class Fleet:
    """A dispatcher and all that left it."""

    def __init__(self) -> None:
        self.now = 0
        self.orders: dict[str, list[Order]] = {}
        self.told: dict[str, list[Notice]] = {}
        self.answers: list[Answer] = []
        self.ended: dict[RunName, RunEnd] = {}
        self.runs = Runs(receipt_ms=100, result_ms=1000)
        self.leases = Leases(lease_ms=5000, hint_ms=500)
        self.dispatcher = Whole(
            MINUTE,
            self._send,
            self.answers.append,
            self._ended,
            leases=self.leases,
            runs=self.runs,
            beat_ms=1500,
            receipt_ms=100,
            result_ms=1000,
            forget_ms=60_000,
        )
        self.index, self.picks = self.dispatcher.index, self.dispatcher.picks

    def _send(self, topic: str, payload: bytes, quality: int) -> None:
        _, _, client, way, kind = topic.split("/")
        assert (way, quality) == ("down", 1)
        if kind == "task":
            self.orders.setdefault(client, []).append(msgspec.json.decode(payload, type=Order))
        else:
            self.told.setdefault(client, []).append(msgspec.json.decode(payload, type=Notice))

    def _ended(self, ended: RunEnd) -> None:
        assert ended.run not in self.ended
        self.ended[ended.run] = ended

    def say(self, client: str, kind: schema.Up, message: Message) -> None:
        self.dispatcher.receive(self.now, schema.up(client, kind), schema.written(message))

    def hello(self, client: str, epoch: int = 1, version: int = 1, country: str = "CN") -> None:
        self.say(client, "hello", Hello(epoch, version, {"country": [country]}))

    def run(self, minute: int = MINUTE, wanted: int = 3) -> RunName:
        name = ("probe", minute)
        self.dispatcher.run(self.now, name, CHINA, wanted, 7, kind="ping", target="example.org")
        return name

    def tick(self, ms: int) -> None:
        self.now += ms
        self.dispatcher.tick(self.now, MINUTE)

    def last(self, client: str) -> str:
        return self.told[client][-1].what


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    for number in range(10):
        made.hello(f"c{number}")
    return made


def test_a_run_asks_as_many_as_wanted_and_ends_with_their_results(fleet: Fleet) -> None:
    run = fleet.run()
    assert sorted(len(orders) for orders in fleet.orders.values()) == [1, 1, 1]
    for client, (order,) in fleet.orders.items():
        assert (order.run, order.kind, order.target) == (f"probe@{MINUTE}", "ping", "example.org")
        fleet.say(client, "receipt", Receipt(order.run, 1))
        fleet.say(client, "result", Result(order.run, 1, True, msgspec.Raw(b'{"ms":1}')))
        fleet.say(client, "result", Result(order.run, 1, True, msgspec.Raw(b'{"ms":2}')))
    assert sorted(fleet.ended[run].done) == sorted(fleet.orders)
    assert [bytes(answer.result.value) for answer in fleet.answers] == [b'{"ms":1}'] * 3
    assert fleet.dispatcher.dropped == {"double": 2, "stranger": 1}  # the last double comes after the run's end


def test_silent_clients_are_replaced_by_others_that_are_free(fleet: Fleet) -> None:
    run = fleet.run()
    first = set(fleet.orders)
    fleet.tick(101)
    assert len(fleet.orders) == 6
    for client in set(fleet.orders) - first:
        fleet.say(client, "result", Result(f"probe@{MINUTE}", 1, True))
    ended = fleet.ended[run]
    assert (set(ended.replaced), set(ended.done), ended.missed) == (first, set(fleet.orders) - first, [])
    fleet.run(MINUTE + 1, 10)
    assert len(fleet.runs._runs["probe", MINUTE + 1].clients) == 10  # nobody is busy any more


def test_a_client_has_one_run_in_flight_at_most(fleet: Fleet) -> None:
    fleet.run(MINUTE, 6)
    fleet.run(MINUTE + 1, 6)
    assert max(len(orders) for orders in fleet.orders.values()) == 1
    assert len(fleet.orders) == 10


def test_a_run_nobody_is_there_for_ends_at_once() -> None:
    fleet = Fleet()
    run = fleet.run()
    assert fleet.ended[run] == RunEnd(run, 3, [], [], [])


def test_a_run_twice_or_too_large_an_order_picks_nobody(fleet: Fleet) -> None:
    fleet.run(wanted=1)
    with pytest.raises(RunsError, match="in flight already"):
        fleet.run(wanted=1)
    with pytest.raises(SchemaError, match="order too long"):
        fleet.dispatcher.run(0, ("x", 1), CHINA, 3, 7, kind="ping", target="x" * 20_000)
    fleet.run(MINUTE + 1, 9)
    assert len(fleet.orders) == 10


def test_strangers_and_earlier_epochs_change_nothing(fleet: Fleet) -> None:
    fleet.run(wanted=9)
    (idle,) = {f"c{number}" for number in range(10)} - set(fleet.orders)
    asked = next(iter(fleet.orders))
    run = f"probe@{MINUTE}"
    fleet.say(idle, "result", Result(run, 1, True))
    fleet.say("nobody", "result", Result(run, 1, True))
    fleet.say(asked, "result", Result(run, 0, True))
    fleet.say(asked, "result", Result("probe", 1, True))
    fleet.dispatcher.receive(0, f"fleet/1/{asked}/up/result", b"{")
    fleet.dispatcher.receive(0, "fleet/1/x/y/up/result", b"{}")
    assert fleet.answers == []
    assert fleet.dispatcher.dropped == {"stranger": 2, "epoch": 1, "form": 2, "topic": 1}


def test_of_two_clients_with_one_name_the_later_epoch_stays_and_both_are_told(fleet: Fleet) -> None:
    fleet.hello("c1", epoch=5)
    assert [(told.what, told.epoch) for told in fleet.told["c1"][-2:]] == [("superseded", 1), ("beat", 5)]
    fleet.hello("c1", epoch=1, version=9, country="US")
    assert (fleet.told["c1"][-1].what, fleet.told["c1"][-1].epoch) == ("superseded", 1)
    fleet.say("c1", "beat", Beat(1))
    assert fleet.last("c1") == "superseded"
    record = fleet.index.record("c1")
    assert record is not None
    assert (record.epoch, record.attributes) == (5, {"country": ["CN"]})


def test_a_client_is_there_while_it_beats_and_comes_back_by_a_beat_and_is_asked_for_a_hello(fleet: Fleet) -> None:
    for _ in range(10):
        fleet.tick(1500)
        fleet.say("c1", "beat", Beat(1))
    assert fleet.index.online == 1
    fleet.tick(5001)
    assert fleet.index.online == 0
    fleet.say("c1", "beat", Beat(1))
    assert fleet.last("c1") == "unknown"
    assert fleet.index.online == 1
    fleet.hello("c1")
    assert (fleet.index.online, fleet.last("c1")) == (1, "beat")


def test_a_node_that_stood_still_for_a_whole_lease_has_its_clients_back_with_their_beats() -> None:
    """Also those for which another node speaks, which asks them nothing, as it knows them."""
    told: list[str] = []
    spoken = Whole(
        MINUTE,
        lambda topic, _payload, _quality: told.append(topic),
        lambda _answer: None,
        lambda _ended: None,
        leases=Leases(lease_ms=5000, hint_ms=500),
        runs=Runs(receipt_ms=100, result_ms=1000),
        beat_ms=1500,
        receipt_ms=100,
        result_ms=1000,
    )
    spoken.presence._speaks = lambda client: False
    spoken.receive(0, schema.up("c1", "hello"), schema.written(Hello(1, 1, {"country": ["CN"]})))
    spoken.tick(5001, MINUTE)
    assert spoken.index.online == 0
    spoken.receive(5001, schema.up("c1", "beat"), schema.written(Beat(2)))  # of another life: that one says hello
    assert spoken.index.online == 0
    spoken.receive(5001, schema.up("c1", "beat"), schema.written(Beat(1)))
    assert spoken.index.online == 0  # and the former life is over
    spoken.tick(60_000, MINUTE)
    spoken.receive(60_000, schema.up("c1", "hello"), schema.written(Hello(2, 1, {"country": ["CN"]})))
    spoken.tick(66_000, MINUTE)
    spoken.receive(66_000, schema.up("c1", "beat"), schema.written(Beat(2)))
    assert spoken.index.online == 1
    assert list(spoken.index.select(CHINA)) == [spoken.index.number("c1")]
    assert not told
    spoken.receive(66_000, schema.up("c2", "beat"), schema.written(Beat(1)))
    assert told == [schema.down("c2", "notice")]  # whoever lacks a client asks


def test_a_bye_is_a_hint_that_a_beat_takes_back(fleet: Fleet) -> None:
    fleet.say("c1", "bye", Bye(1))
    fleet.say("c2", "bye", Bye(1))
    fleet.say("c2", "beat", Beat(1))
    fleet.tick(501)
    assert fleet.index.online == 9
    assert fleet.leases.epoch("c1") is None


def test_attributes_change_by_a_greater_version_only(fleet: Fleet) -> None:
    fleet.hello("c1", version=2, country="US")
    fleet.hello("c1", version=1, country="CN")
    assert fleet.index.values("country") == {"CN": 9, "US": 1}


def test_bad_attributes_are_refused_and_told(fleet: Fleet) -> None:
    fleet.say("new", "hello", Hello(1, 1, {"colour": ["red"]}))
    assert fleet.last("new") == "refused"
    assert "unknown attribute 'colour'" in fleet.told["new"][-1].text
    assert (fleet.index.online, fleet.dispatcher.dropped["refused"]) == (10, 1)


def test_a_beat_of_a_client_that_said_no_hello_leaves_nothing_behind(fleet: Fleet) -> None:
    fleet.say("stranger", "beat", Beat(7))
    assert fleet.last("stranger") == "unknown"
    assert fleet.leases.epoch("stranger") is None


def test_a_forgotten_client_leaves_index_picks_and_leases_together(fleet: Fleet) -> None:
    fleet.run(wanted=10)
    for client in list(fleet.orders):
        fleet.say(client, "result", Result(f"probe@{MINUTE}", 1, True))
    number = fleet.index.number("c1")
    assert number is not None
    for _ in range(5):
        fleet.tick(5001)
        for other in range(2, 10):
            fleet.say(f"c{other}", "beat", Beat(1))
            fleet.hello(f"c{other}")
    assert fleet.index.record("c1") is not None
    for _ in range(20):
        fleet.tick(5001)
    assert (fleet.index.record("c1"), fleet.leases.epoch("c1")) == (None, None)
    fleet.hello("new")
    assert fleet.index.number("new") is not None
    assert fleet.picks.weight("new") == 1.0


def test_more_clients_than_are_kept_are_refused_and_told() -> None:
    fleet = Fleet()
    fleet.dispatcher.presence._known_max = 2
    for client in ("a", "b", "c"):
        fleet.hello(client)
    assert fleet.last("c") == "refused"
    assert (fleet.index.online, fleet.dispatcher.dropped["refused"]) == (2, 1)


def test_a_run_that_is_taken_up_asks_again_only_for_what_is_missing(fleet: Fleet) -> None:
    name = ("probe", MINUTE)
    plane = fleet.dispatcher.dispatcher
    order = plane.order(name, "ping", "example.org", {})
    fleet.dispatcher._live[name] = (CHINA, 7, [fleet.picks.pick(CHINA, 4, 7).numbers])
    asked = [("c1", 1), ("c2", 1), ("c3", 1)]
    plane.begin(fleet.now, name, order, asked, 3, replaced=["c4"], done=["c1"])
    assert sorted(fleet.orders) == ["c2", "c3"]
    assert plane.tick(fleet.now) == []
    fleet.tick(101)  # there was a draw of replacements already
    fleet.say("c2", "result", Result(f"probe@{MINUTE}", 1, True))
    assert fleet.ended[name] == RunEnd(name, 3, ["c1"], ["c4"], ["c2", "c3"])
