"""Presence through its binding: the compiled machines with the runner of the control plane.

Paths lose, copy and reorder frames; time is a number.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_server import _engines
from muster_server.systems.presence.compensation import Compensation, CompensationSettings
from tests.reference import presence

SECOND = 1_000_000
SITES = [(1, 1), (2, 2)]
DEVICES = ("phone", "laptop")


@dataclass
class Rig:
    """Two gateways, two paths, the writers of two sites, and what is under way."""

    seed: int
    loss: float
    start: int = 0
    sites: list[tuple[int, int]] = field(default_factory=lambda: SITES)
    now: int = 10 * SECOND
    epochs: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 1})
    asks: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.flight: list[tuple[int, str, int, bytes]] = []
        self.gateways = {ap: self.gateway(ap) for ap in self.epochs}
        self.writers: dict[int, _engines.PresenceWriter] = {}
        self.runners: dict[int, Compensation] = {}
        self.places = [(site, of, index) for site, of in self.sites for index in range(of)]
        for number, (_, shards, index) in enumerate(self.places):
            writer = _engines.PresenceWriter(b'{"grace_ms": 0}', shards=shards, index=index, epoch=1)
            writer.expect(self.now, list(self.epochs))
            self.writers[number] = writer
            self.runners[number] = Compensation(
                writer,
                lambda ap, frame, number=number: self.send("gateway", ap, frame, number),  # type: ignore[misc]
                shards=shards,
                index=index,
                epoch=1,
                settings=CompensationSettings(),
                chance=self.chance,
            )
        self.asker: dict[bytes, int] = {}

    def gateway(self, ap: int) -> _engines.PresenceAccess:
        return _engines.PresenceAccess(b"{}", ap=ap, epoch=self.epochs[ap], now=self.now, version=self.start)

    def send(self, kind: str, to: int, frame: bytes, asker: int | None = None) -> None:
        if asker is not None:
            self.asks += 1
            self.asker[frame] = asker
        for _ in range(1 + (self.chance.random() < 0.1)):
            if self.chance.random() >= self.loss:
                self.flight.append((self.now + self.chance.randrange(20_000), kind, to, frame))

    def step(self, microseconds: int) -> None:
        """Lets time pass in steps of 10 ms."""
        end = self.now + microseconds
        while self.now < end:
            self.now += 10_000
            for ap, gateway in self.gateways.items():
                gateway.expire(self.now)
                for writer, frame in gateway.take():
                    if writer is None:
                        self.send("proxy", ap, frame)
                        self.send("proxy", ap, frame)
                    else:
                        self.send("writer", writer, frame)
            for _, kind, to, frame in self.due():
                self.arrive(kind, to, frame)
            for number, machine in self.writers.items():
                machine.expire(self.now)
                self.runners[number].run(self.now)

    def due(self) -> Iterator[tuple[int, str, int, bytes]]:
        ready = sorted(each for each in self.flight if each[0] <= self.now)
        self.flight = [each for each in self.flight if each[0] > self.now]
        yield from ready

    def arrive(self, kind: str, to: int, frame: bytes) -> None:
        if kind == "proxy":
            for site, of, index, share in _engines.presence_split(1, self.sites, frame):
                self.send("writer", self.places.index((site, of, index)), share)
        elif kind == "writer":
            assert len(self.writers[to].feed(self.now, frame)) == 1
        else:
            self.gateways[to].feed(self.now, self.asker[frame], frame)

    def truth(self, shards: int, index: int) -> set[tuple[int, str, int]]:
        return {
            (user, device, ap)
            for ap, gateway in self.gateways.items()
            for user, device in gateway.devices()
            if user % shards == index
        }

    def roam(self, moves: int) -> None:
        sessions: dict[tuple[int, int, str], int] = {}
        for session in range(moves):
            ap, user, device = self.chance.choice([1, 2]), self.chance.randrange(12), self.chance.choice(DEVICES)
            gateway = self.gateways[ap]
            if self.chance.random() < 0.6:
                gateway.online(self.now, self.now // 1_000, user, device, session)
                sessions[ap, user, device] = session
            else:
                known = sessions.pop((ap, user, device), session)
                gateway.offline(self.now, self.now // 1_000, user, device, known, "closed")
            self.step(10_000)


@pytest.mark.parametrize("start", [0, (1 << 32) - 20, (1 << 64) - 20])
@pytest.mark.parametrize("seed", range(4))
def test_views_are_the_truth_after_losses_and_a_restart(seed: int, start: int) -> None:
    rig = Rig(seed=seed, loss=0.1, start=start)
    rig.roam(150)
    rig.epochs[1] = 2
    rig.gateways[1] = rig.gateway(1)
    rig.roam(100)
    rig.loss = 0.0
    rig.step(4 * SECOND)
    assert rig.asks > 10, "losses on both paths were asked for"
    for number, (shards, index) in enumerate([(1, 0), (2, 0), (2, 1)]):
        writer = rig.writers[number]
        assert set(writer.online()) == rig.truth(shards, index)
        assert writer.standing(rig.now) == ("in_sync", None)
        assert rig.runners[number].in_flight == (0, 0)
        assert all(follows and missing == 0 for _, _, follows, _, _, missing in writer.sources())


def test_a_device_that_moves_to_a_gateway_that_began_again_may_be_at_neither_while_the_shard_is_read() -> None:
    """An answer was true of each gateway at some moment (PRES-10): events of two gateways have no order (PRES-17)."""
    rig = Rig(seed=1, loss=0.0, sites=[(1, 1)])
    rig.gateways[2].online(rig.now, 1, 7, "phone", 1)
    rig.step(1 * SECOND)
    (writer,) = rig.writers.values()
    assert list(writer.online()) == [(7, "phone", 2)]
    rig.epochs[1] = 2
    rig.gateways[1] = rig.gateway(1)
    rig.gateways[1].online(rig.now, 1, 7, "phone", 2)
    rig.gateways[2].offline(rig.now, 1, 7, "phone", 1, "closed")
    while set(writer.online()):
        rig.flight = [each for each in rig.flight if each[1] != "gateway"]  # questions for the full state are lost
        rig.step(10_000)
    assert writer.standing(rig.now) == ("in_sync", None)
    assert rig.truth(1, 0) == {(7, "phone", 1)}
    rig.step(4 * SECOND)
    assert list(writer.online()) == [(7, "phone", 1)]


def _in_sync(rig: Rig, seconds: float) -> float:
    """The virtual time until every writer is in sync, at most these seconds."""
    began = rig.now
    while any(writer.standing(rig.now) != ("in_sync", None) for writer in rig.writers.values()):
        assert rig.now < began + seconds * SECOND, "writers wait for full states"
        rig.step(50_000)
    return (rig.now - began) / SECOND


def test_sixty_four_writers_have_all_states_within_seconds_at_the_start_and_after_a_gateway_s_restart() -> None:
    rig = Rig(seed=1, loss=0.0, sites=[(site, 16) for site in range(1, 5)])
    for user in range(2_000):
        rig.gateways[1].online(rig.now, 1, user, "phone", user)
    _in_sync(rig, 5)
    rig.epochs[1] = 2
    rig.gateways[1] = rig.gateway(1)
    for user in range(2_000):
        rig.gateways[1].online(rig.now, 1, user, "phone", user)
    rig.step(SECOND)  # the new life is heard of
    _in_sync(rig, 5)
    rig.step(SECOND)
    for number, (_, shards, index) in enumerate(rig.places):
        assert set(rig.writers[number].online()) == rig.truth(shards, index)


def test_more_writers_than_places_wait_for_moments_and_none_backs_off() -> None:
    rig = Rig(seed=1, loss=0.0, sites=[(site, 35) for site in range(1, 3)])
    for user in range(400):
        rig.gateways[1].online(rig.now, 1, user, "phone", user)
    _in_sync(rig, 5)
    assert all(runner.given_up == 0 for runner in rig.runners.values())


def test_gateways_that_are_dead_hold_up_no_state_of_others() -> None:
    rig = Rig(seed=1, loss=0.0)
    rig.epochs |= dict.fromkeys(range(3, 9), 1)
    for ap in range(3, 9):
        for writer in rig.writers.values():
            writer.expect(rig.now, [ap])
    dead = {ap: rig.gateways.pop(ap, None) for ap in (1, 2)}
    assert len(dead) == 2
    rig.gateways |= {ap: rig.gateway(ap) for ap in range(3, 9)}
    arrive = rig.arrive
    rig.arrive = lambda kind, to, frame: (  # type: ignore[method-assign]
        None if kind == "gateway" and to not in rig.gateways else arrive(kind, to, frame)
    )
    rig.step(3 * SECOND)
    for writer in rig.writers.values():
        followed = {ap for ap, _, follows, *_ in writer.sources() if follows}
        assert followed == set(range(3, 9))


def test_a_gateway_that_does_not_answer_is_asked_more_seldom() -> None:
    rig = Rig(seed=1, loss=0.0)
    rig.step(SECOND)
    before = rig.asks
    del rig.gateways[2]
    writer = rig.writers[0]
    asked: list[int] = []
    rig.runners[0]._send = lambda ap, frame: asked.append(rig.now)
    shares = _engines.PresenceAccess(b"{}", ap=2, epoch=1, now=rig.now)
    shares.online(rig.now, 0, 3, "phone", 1)
    for _ in range(3):
        shares.expire(rig.now + 60_000)
        shares.online(rig.now, 0, 3, "phone", 1)
        frames = [frame for to, frame in shares.take() if to is None and frame[0] == 24]
    writer.feed(rig.now, _engines.presence_split(1, [(1, 1)], frames[-1])[0][3])
    rig.step(9 * SECOND)
    assert before > 0
    waits = [after - at for at, after in itertools.pairwise(asked)]
    assert len(waits) >= 3
    assert waits[-1] > 3 * waits[0]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(0, 3), st.sampled_from(DEVICES), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([0, (1 << 64) - 6]),
)
def test_a_writer_and_the_slow_model_have_the_same_places(
    packets: list[tuple[int, int, str, bool]], start: int
) -> None:
    """Packets of one event each, their versions in any order, some twice, some never."""
    writer = _engines.PresenceWriter(b'{"grace_ms": 0}', shards=1, index=0, epoch=1)
    model, gaps = presence.Writer(), presence.Gaps(start)
    origin = {"ap": 1, "epoch": 1}
    writer.feed(0, presence.encode(27, {**origin, "newest": start}))
    writer.full_asked(1, 1)
    chunk = {**origin, "transaction": 1, "version": start, "index": 0, "count": 1, "entries": []}
    assert writer.feed(0, presence.encode(31, chunk)) == ["applied"]
    for distance, user, device, online in packets:
        version = (start + distance) % presence.CIRCLE
        event = {"index": 0, "user": user, "device": device, "state": 0 if online else 1, "at_ms": 5}
        share = {**origin, "map": 1, "of": 1, "shard": 0, "version": version, "events": [event]}
        fresh = gaps.take(version, version) == "fresh"
        assert writer.feed(0, presence.encode(25, share)) == ["applied" if fresh else "duplicate"]
        if fresh:
            model.apply(1, 1, version, 0, user, device, online)
        assert set(writer.online()) == model.online
        ((_, _, follows, complete, highest, missing),) = writer.sources()
        assert follows
        assert complete == (start + gaps.complete) % presence.CIRCLE
        assert highest == (start + gaps.highest) % presence.CIRCLE
        assert missing == len(gaps.missing)


def test_a_batch_is_a_record_its_changes_and_the_vector() -> None:
    rig = Rig(seed=3, loss=0.0)
    rig.step(SECOND)
    for writer in rig.writers.values():
        while writer.batch(10):
            writer.written()
    rig.gateways[1].online(rig.now, 77, 4, "phone", 9)
    rig.step(SECOND)
    writer = rig.writers[0]
    batch = writer.batch(10)
    assert batch is not None
    ((user, record, changes),), vector = batch
    assert (user, _engines.presence_record(record)) == (4, [(1, 1, "phone", 1, 0, "online", 77)])
    assert changes == [(1, 1, 1, 0, "phone", "online", 77)]
    assert vector == [(1, 1, 1)]
    assert writer.batch(10) == batch, "the same until it is written"
    writer.written()
    assert writer.is_written()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: _engines.PresenceWriter(b"{}", shards=2, index=2, epoch=1),
        lambda: _engines.presence_record(b"\x09"),
        lambda: _engines.presence_split(1, SITES, b"\x19\x00\x01\x00x"),
        lambda: _engines.presence_ask(1, (1, 0), (1, 1), [(5, 4)]),
        lambda: _engines.presence_ask(1, (1, 0), (1, 1), [(5, 5)] * 33),
    ],
)
def test_what_is_no_frame_or_shard_is_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"\w"):
        wrong()
