"""Clocks of clients and of index nodes that were ahead, and are right again."""

import msgspec

from muster_server.systems.fleet import schema
from muster_server.systems.fleet.index import Index
from muster_server.systems.fleet.leases import Leases
from muster_server.systems.fleet.minutes import Minutes
from muster_server.systems.fleet.picks import Picks
from muster_server.systems.fleet.presence import AHEAD_MS, Presence
from muster_server.systems.fleet.schema import Beat, Hello, Notice

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
LEASE_MS = 90_000


class Node:
    """What an index node knows, and says to its clients."""

    def __init__(self, index: Index | None = None) -> None:
        self.now, self.wall = 0, NOW_MS
        self.told: list[Notice] = []
        self.index = index or Index()
        self.leases = Leases(lease_ms=LEASE_MS, hint_ms=20_000)
        self.presence = Presence(
            self.index,
            self.leases,
            Picks(self.index, NOW_MS // 60_000),
            beat_ms=30_000,
            forget_ms=168 * 3_600_000,
            send=lambda topic, payload, _: self.told.append(msgspec.json.decode(payload, type=Notice)),
            wall_ms=lambda: self.wall,
        )

    def hello(self, epoch: int) -> str:
        """What a client hears to its hello."""
        message = schema.written(Hello(epoch, 1, {"country": ["CN"]}))
        self.presence.receive(self.now, schema.up("c1", "hello"), message)
        return self.told[-1].what

    def beat(self, epoch: int) -> str:
        before = len(self.told)
        self.presence.receive(self.now, schema.up("c1", "beat"), schema.written(Beat(epoch)))
        return self.told[-1].what if len(self.told) > before else ""

    def pass_ms(self, length: int) -> None:
        self.now += length
        self.wall += length
        self.presence.tick(self.now)

    @property
    def epoch(self) -> int | None:
        record = self.index.record("c1")
        return None if record is None or record.attributes is None else record.epoch


def test_an_epoch_of_the_future_keeps_a_client_out_until_its_lease_ends() -> None:
    node = Node()
    assert node.hello(NOW_MS + 30 * DAY_MS) == "beat"
    assert list(node.presence.ahead()) == ["c1"]
    node.pass_ms(1_000)
    assert node.hello(NOW_MS + 1_000) == "superseded", "it may be there still"
    assert "muster fleet heal c1" in node.told[-1].text
    node.pass_ms(LEASE_MS + 1)
    assert node.epoch is None
    assert node.beat(NOW_MS + 1_000) == "unknown", "and not superseded, which ends an agent"
    assert node.hello(NOW_MS + 1_000) == "beat"
    assert node.epoch == NOW_MS + 1_000
    assert node.presence.ahead() == {}
    assert node.beat(NOW_MS + 1_000) == ""


def test_a_later_epoch_of_the_past_stays_later_when_its_lease_has_ended() -> None:
    node = Node()
    assert node.hello(NOW_MS) == "beat"
    node.pass_ms(LEASE_MS + 1)
    assert node.hello(NOW_MS - 1) == "superseded"
    assert node.beat(NOW_MS - 1) == "superseded"
    assert node.epoch is None


def test_a_node_that_begins_anew_still_knows_the_later_epoch() -> None:
    before = Node()
    before.hello(NOW_MS)
    before.pass_ms(LEASE_MS + 1)
    node = Node(Index.restored(before.index.snapshot()))
    node.presence.restored(0)
    assert node.hello(NOW_MS - 1) == "superseded"
    assert node.hello(NOW_MS + 1) == "beat"


def test_numbers_that_are_no_times_are_not_of_the_future() -> None:
    for epoch in (7, NOW_MS * 1_000, NOW_MS * 1_000_000, NOW_MS + AHEAD_MS):
        node = Node()
        assert node.hello(epoch) == "beat"
        assert node.presence.ahead() == {}
        node.pass_ms(LEASE_MS + 1)
        assert node.hello(epoch - 1) == "superseded"


def test_a_command_lets_a_client_in_at_once_with_any_epoch() -> None:
    node = Node()
    node.hello(NOW_MS + 30 * DAY_MS)
    assert node.presence.readmit("c1")
    assert node.epoch is None
    assert node.hello(5) == "beat"
    assert node.epoch == 5
    assert not node.presence.readmit("nobody")


def test_weights_come_back_by_the_steady_clock_while_the_wall_clock_is_behind() -> None:
    wall, steady = 1_000_000 * 60.0, 0.0
    minutes = Minutes(wall_s=lambda: wall, steady_s=lambda: steady)
    assert minutes.now() == 1_000_000
    wall += 86_400
    assert minutes.now() == 1_001_440
    wall -= 86_400
    steady += 59
    assert minutes.now() == 1_001_440
    steady += 1 + 120
    assert minutes.now() == 1_001_443
    wall += 90_000
    assert minutes.now() == 1_001_500
    assert Minutes(2_000_000, wall_s=lambda: wall, steady_s=lambda: steady).now() == 2_000_000
