"""Policies of devices: the writer's contests beside a slow model, and whole nodes that settle in any weather."""

import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_server import _engines
from tests.reference import presence
from tests.reference.policies import Contest, Policy, Session, group_of

SECOND = 1_000_000
BARRED_US = 30 * SECOND
BARS = 0xFFFF
"""The index of a frame that ends no session but has a device refused."""
USER = 7
GATEWAYS = (1, 2, 3)
DEVICES = ("phone:a", "phone:b", "laptop")
POLICIES: tuple[Policy, ...] = ("many", "one per kind", "one")

Step = tuple[int, str, bool, bool]
"""Gateway, device, whether it comes, whether the event is held back until the gateway's next one is there."""


def writer_of(policy: str) -> _engines.PresenceWriter:
    """A writer that has heard of all gateways, which are empty."""
    settings = msgspec.json.encode({"grace_ms": 0, "devices": policy})
    made = _engines.PresenceWriter(settings, shards=1, index=0, epoch=1)
    made.expect(0, list(GATEWAYS))
    for gateway in GATEWAYS:
        origin = {"ap": gateway, "epoch": 1}
        made.feed(0, presence.encode(27, {**origin, "newest": 0}))
        made.full_asked(gateway, gateway)
        chunk = {**origin, "transaction": gateway, "version": 0, "index": 0, "count": 1, "entries": []}
        made.feed(0, presence.encode(31, chunk))
    return made


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.lists(
        st.tuples(st.sampled_from(GATEWAYS), st.sampled_from(DEVICES), st.booleans(), st.booleans()),
        min_size=1,
        max_size=24,
    ),
)
def test_a_writer_ends_the_sessions_that_the_slow_model_ends(policy: Policy, steps: list[Step]) -> None:
    writer, model = writer_of(policy), Contest(policy)
    versions: dict[int, int] = defaultdict(int)
    highest: dict[int, int] = defaultdict(int)
    held: dict[int, list[tuple[int, str, bool, int]]] = defaultdict(list)
    last: dict[tuple[str, int], int] = defaultdict(int)

    def deliver(gateway: int, version: int, device: str, comes: bool, at_ms: int) -> None:
        event = {"index": 0, "user": USER, "device": device, "state": 0 if comes else 1, "at_ms": at_ms}
        share = {"ap": gateway, "epoch": 1, "map": 1, "of": 1, "shard": 0, "version": version, "events": [event]}
        assert writer.feed(now, presence.encode(25, share)) == ["applied"]
        in_order = version > highest[gateway]
        highest[gateway] = max(highest[gateway], version)
        if version > last[device, gateway]:
            last[device, gateway] = version
            if comes:
                model.came(Session(at_ms, gateway, version, device), in_order=in_order)
            else:
                model.went((device, gateway))

    for number, (gateway, device, comes, waits) in enumerate(steps):
        now = 2 * SECOND * (number + 1)
        versions[gateway] += 1
        event = (versions[gateway], device, comes, 1_000 + number * 7 % 5)
        if waits:
            held[gateway].append(event)
            continue
        deliver(gateway, *event)
        for late in held.pop(gateway, []):
            deliver(gateway, *late)
        told = {
            (fields["device"], to, fields["version"])
            for to, frame in writer.supersedes(now + SECOND)
            for fields in [presence.decode(frame)[1]]
            if fields["index"] != BARS
        }
        assert told == {(each.device, each.gateway, each.version) for each in model.told(set(GATEWAYS))}
        assert writer.supersedes(now + SECOND) == [], "again in a second"


@dataclass
class World:
    """Three gateways and the writers of two sites, between which frames are late, lost and doubled."""

    policy: Policy
    seed: int
    loss: float
    now: int = 10 * SECOND
    ends: dict[int, str] = field(default_factory=dict)
    """Sessions that are over, and why."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        settings = msgspec.json.encode({"grace_ms": 0, "devices": self.policy})
        self.gateways = {node: _engines.PresenceAccess(settings, ap=node, epoch=1, now=self.now) for node in GATEWAYS}
        self.writers = {node: _engines.PresenceWriter(settings, shards=1, index=0, epoch=1) for node in (11, 12)}
        self.sessions: dict[int, tuple[int, str]] = {}
        self.numbers = itertools.count(1)
        self.flight: list[tuple[int, int, int, int, bytes]] = []
        for node in self.writers:
            self.link(node, up=True)
            self.writers[node].expect(self.now, list(GATEWAYS))

    def link(self, writer: int, *, up: bool) -> None:
        """A writer is there for the gateways, or is not."""
        for gateway in self.gateways.values():
            gateway.writer(writer, (writer - 10, 1, 0) if up else None)
        if not up:
            del self.writers[writer]

    def send(self, source: int, to: int, frame: bytes) -> None:
        """Have a frame arrive later, perhaps twice, perhaps never."""
        for _ in range(1 + (self.chance.random() < 0.1)):
            if self.chance.random() >= self.loss:
                at = self.now + self.chance.randrange(40_000)
                self.flight.append((at, next(self.numbers), source, to, frame))

    def come(self, gateway: int, device: str, *, takes_over: bool = False) -> int | None:
        """A program opens a session; None: it is refused."""
        if self.gateways[gateway].barred(self.now, USER, device, takes_over) is not None:
            return None
        session = next(self.numbers)
        self.sessions[session] = (gateway, device)
        for ended, why in self.gateways[gateway].online(self.now, self.now // 1_000, USER, device, session):
            self.end(ended, why)
        return session

    def end(self, session: int, why: str) -> None:
        """A session is over."""
        known = self.sessions.pop(session, None)
        if known is not None:
            self.ends[session] = why
            gateway, device = known
            self.gateways[gateway].offline(self.now, self.now // 1_000, USER, device, session, why)

    def live(self, seconds: float) -> None:
        """Let time pass in steps of 10 ms."""
        for _ in range(round(seconds * 100)):
            self.now += 10_000
            for node, gateway in self.gateways.items():
                gateway.expire(self.now)
                for to, frame in gateway.take():
                    for writer in self.writers if to is None else [to]:
                        if to is not None:
                            self.send(node, writer, frame)
                            continue
                        for _, _, _, share in _engines.presence_split(1, [(1, 1)], frame):
                            self.send(node, writer, share)
            ready = sorted(each for each in self.flight if each[0] <= self.now)
            self.flight = [each for each in self.flight if each[0] > self.now]
            for _, _, source, to, frame in ready:
                if to in self.writers:
                    self.writers[to].feed(self.now, frame)
                elif to in self.gateways:
                    for session, why in self.gateways[to].feed(self.now, source, frame):
                        self.end(session, why)
            for node, keeper in self.writers.items():
                keeper.expire(self.now)
                for ap, epoch, ranges in keeper.due(self.now):
                    keeper.asked(ap, ranges, self.now)
                    self.send(node, ap, _engines.presence_ask(self.now, (1, 0), (ap, epoch), ranges))
                    keeper.release(ap, self.now)
                for ap, _, asked, missing, _ in keeper.fulls():
                    number = asked or self.now
                    if asked is None:
                        keeper.full_asked(ap, number)
                    if self.now % 200_000 == 0 or asked is None:
                        self.send(node, ap, _engines.presence_full_ask(number, (1, 0), ap, missing))
                for ap, frame in keeper.supersedes(self.now):
                    self.send(node, ap, frame)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(12))
def test_each_group_of_devices_ends_with_one_session_and_never_with_none_or_two(policy: Policy, seed: int) -> None:
    world = World(policy, seed, loss=0.1)
    world.live(1)
    came: set[str] = set()
    for _ in range(25):
        device = world.chance.choice(DEVICES)
        came.add(group_of(policy, device))
        world.come(world.chance.choice(GATEWAYS), device, takes_over=world.chance.random() < 0.5)
        world.live(world.chance.choice([0, 0, 0.01, 0.06, 0.3]))
    if seed % 3 == 0:
        world.link(11, up=False)  # the writer of the first site dies: that of the second one decides
    world.loss = 0.0
    world.live(6)
    left = [group_of(policy, device) for _, device in world.sessions.values()]
    assert sorted(left) == sorted(came), "one of each"
    assert set(world.ends.values()) <= {"replaced"}


def test_of_two_programs_that_come_at_once_at_two_gateways_one_stays_for_both_writers() -> None:
    for seed in range(40):
        world = World("one", seed, loss=0.0)
        world.live(1)
        world.come(1, "phone:a")
        world.come(2, "laptop")
        world.live(3)
        assert len(world.sessions) == 1, f"seed {seed}"
        world.come(3, "phone:b", takes_over=True)
        world.live(3)
        assert [device for _, device in world.sessions.values()] == ["phone:b"], "the newest one stays"


def test_a_program_that_comes_back_within_the_window_of_a_packet_ends_the_other_one() -> None:
    world = World("one", 1, loss=0.0)
    world.live(1)
    world.come(1, "phone:a")
    world.live(1)
    world.come(1, "phone:a")
    world.come(2, "laptop")
    world.live(0.02)
    world.come(1, "phone:a")
    world.live(3)
    assert len(world.sessions) == 1


@pytest.mark.parametrize("policy", ["one", "one per kind"])
@pytest.mark.parametrize("places", [(1, 1), (1, 2), (1, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_two_programs_that_come_back_when_they_are_replaced_settle_and_the_newer_one_stays(
    policy: Policy, places: tuple[int, int], seed: int
) -> None:
    world = World(policy, seed, loss=0.0)
    world.live(1)
    sessions = {"phone:a": world.come(places[0], "phone:a")}
    world.live(1)
    sessions["phone:b"] = world.come(places[1], "phone:b")
    tries = dict.fromkeys(sessions, 0)
    for _ in range(60):
        world.live(0.3)  # the other gateways have heard of a replacement at one gateway after 0.2 s
        for device, session in sessions.items():
            if session is None or session in world.ends:
                tries[device] += 1
                sessions[device] = world.come(world.chance.choice(GATEWAYS), device)
    assert [device for _, device in world.sessions.values()] == ["phone:b"]
    assert tries["phone:b"] == 0, "the newer one was never replaced"
    assert sum(why == "replaced" for why in world.ends.values()) == 1


def test_a_device_that_was_replaced_comes_back_after_a_quiet_time_or_when_its_user_asks_for_it() -> None:
    world = World("one", 1, loss=0.0)
    world.live(1)
    world.come(1, "phone:a")
    world.live(1)
    world.come(2, "phone:b")
    world.live(1)
    assert all(each.barred(world.now, USER, "phone:a", False) == BARRED_US for each in world.gateways.values())
    world.now += BARRED_US - 1
    assert world.come(3, "phone:a") is None, "each try begins the time again"
    world.now += BARRED_US
    assert world.come(3, "phone:a") is not None
    world.live(1)
    assert [device for _, device in world.sessions.values()] == ["phone:a"]
    assert world.come(2, "phone:b") is None
    assert world.come(2, "phone:b", takes_over=True) is not None
    world.live(1)
    assert [device for _, device in world.sessions.values()] == ["phone:b"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_device_that_moves_or_crashes_replaces_itself_as_often_as_it_likes(policy: Policy) -> None:
    world = World(policy, 2, loss=0.0)
    world.live(1)
    for turn in range(20):
        assert world.come(GATEWAYS[turn % 3], "phone:a") is not None
        world.live(0.3)
        assert world.come(GATEWAYS[turn % 3], "phone:a") is not None
        world.live(0.3)
    assert len(world.sessions) == 1
