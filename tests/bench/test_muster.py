"""Muster as a target, and the benches that measure it, under tiny loads."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench import (
    browsers,
    cli,
    commands,
    edge,
    edge_servers,
    failover,
    fanout,
    hops,
    isolation,
    listeners,
    loss,
    maps,
    memory,
    nodes,
    overload,
    pin,
    receive,
    rejoin,
    scale,
    starts,
    storm,
    targets,
)
from bench.child import python_environment
from bench.loops import FeedEngine, KnownRooms, ScaleEngine
from bench.muster import LIVE, PACED, Instance, Muster, late_percentile_us
from bench.null import _null
from bench.peers import compare
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, Series, VoidRunError
from bench.targets import Load

FIELDS = ["name", "goal", "value", "reference", "ratio", "min", "max", "holds"]
MISSED = Case.compared("x", Series((5.0,)), Series((10.0,)), Goal("PF-1", ">=", 0.9))
HELD = Case.compared("x", Series((10.0,)), Series((10.0,)), Goal("PF-1", ">=", 0.9))


@pytest.fixture(scope="module", autouse=True)
def without_database() -> Iterator[None]:
    """None of these instances has a database: its library adds a second to each start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_DATABASE__URL", "none")
        yield


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    one = Instance(ticks=True, settings={"proxy.command_burst": 5})
    try:
        one.start()
        yield one
    finally:
        one.stop()


def test_every_saturated_delivery_arrives_intact(instance: Instance) -> None:
    result = Muster(instance).run(Load("saturated", 10, seconds=0.1, warm_up_seconds=0.05))
    assert (result.lost, result.duplicated, result.corrupted) == (0, 0, 0)
    assert result.deliveries == result.published * 10 > 0
    assert result.server_cpu_ns == sum(result.role_cpu_ns.values()) > result.role_cpu_ns["gateway"] > 0
    assert result.latency is None


def test_every_paced_delivery_arrives_and_is_timed_without_gro_too(instance: Instance) -> None:
    target = Muster(instance, "without", gro=False)
    result = target.run(Load("paced", 5, rate=2_000, seconds=0.2, warm_up_seconds=0.0))
    assert (result.lost, result.duplicated, result.corrupted) == (0, 0, 0)
    assert (result.published, result.deliveries) == (80, 400)
    latency = result.latency
    assert latency is not None
    assert 0 < latency.first_p50 <= latency.middle_p50 <= latency.last_p50
    assert 0 < latency.p50 <= latency.p90 <= latency.p99 <= latency.p99_9


def test_a_schedule_that_sheds_never_waits_for_credit(instance: Instance) -> None:
    with instance.clients(2, rooms=[instance.room(LIVE)]) as engine:
        done = engine.pace(200, 1_000_000.0, 0.1, 10.0, shed=True)
    assert done["published"] + done["shed"] == 100_000
    assert done["shed"] > 0
    assert done["delivered"] == 2 * done["published"]


def test_a_saturated_publisher_waits_for_what_is_on_its_way(instance: Instance) -> None:
    with instance.clients(10, rooms=[instance.room(PACED), instance.room(PACED)]) as engine:
        none = engine.saturate(200, 0.02, window=0)
        some = engine.saturate(200, 0.2, window=2)
    assert (none["published"], none["complete"]) == (0, True)
    assert some["complete"]
    assert some["delivered"] == 5 * some["published"] > 20  # more than one window


def test_members_in_many_rooms_check_each(instance: Instance) -> None:
    rooms = [instance.room(PACED) for _ in range(300)]  # more than one publisher may have
    with instance.clients(10, rooms=rooms, rooms_each=60) as engine:
        done = engine.saturate(200, 0.2, window=40)
    assert done["complete"]
    assert done["delivered"] == 2 * done["published"] > 0
    assert (done["out_of_turn"], done["corrupted"], done["gaps"]) == (0, 0, 0)


def test_members_command_each_other_and_every_answer_is_true(instance: Instance) -> None:
    rooms = [instance.room(LIVE) for _ in range(4)]
    with instance.clients(12, rooms=rooms, commanding=True) as engine:
        done = engine.command(5, 0.1, 10.0, 100, 10)
        assert engine.sessions_lost() == 0
        assert (done["sent"], done["delivered"], done["no_member"]) == (60, 54, 6)
        assert done["told"] == 54 * 3
        wrong = ("expired", "refused", "silent", "late", "doubled", "strays", "missed", "away", "miscounted")
        assert {name: done[name] for name in wrong} == dict.fromkeys(wrong, 0)
        assert len(done["latencies_us"]) == 60 * 4
        beyond = engine.command(10, 0.0, 10.0, 100)
    # At most a second's worth has come back of the five that each may send at once.
    assert beyond["refused"] > 0
    assert beyond["refused"] + beyond["delivered"] == beyond["sent"] == 120
    assert beyond["told"] == 3 * beyond["delivered"]


@pytest.mark.parametrize(("silent", "void"), [(0.0, True), (1.0, False)])
def test_a_late_generator_voids_a_run_of_commands_unless_something_was_wrong(silent: float, void: bool) -> None:
    figures = dict.fromkeys(commands.JUDGED, 0.0) | {"silent": silent, commands.LATE: commands.LATE_MS_MAX + 1}
    sample = commands._on_time(Entry("x", lambda: Sample(figures))).run()
    assert bool(sample.void) is void
    assert sample.figures == figures


def test_places_say_how_long_nothing_came_since_a_moment(instance: Instance) -> None:
    with instance.clients(4, rooms=[instance.room(LIVE), instance.room(LIVE)]) as engine:
        engine.watch(time.monotonic() + 3_600)
        engine.pace(100, 100.0, 0.1)
        nothing, _ = (np.frombuffer(times, dtype="<u4") for times in engine.heard())
        engine.watch(time.monotonic() - 1)
        engine.pace(100, 100.0, 0.1)
        first, silence = (np.frombuffer(times, dtype="<u4") for times in engine.heard())
    assert set(nothing) == {np.iinfo(np.uint32).max}
    assert len(first) == 4
    assert min(first) >= 1_000_000  # the watch began before
    assert list(silence) == list(first)


def test_members_stay_where_they_are_when_another_gateway_is_named(instance: Instance) -> None:
    (gateway,) = instance.record.gateways
    here = (gateway.host, gateway.port, bytes.fromhex(gateway.public_key))
    nowhere = (gateway.host, 1, bytes.fromhex(gateway.public_key))
    with instance.clients(5, rooms=[instance.room(LIVE)]) as engine:
        engine.redirect([nowhere, here])
        assert engine.pace(100, 50.0, 0.2)["complete"]
        assert (engine.joined(), engine.sessions_lost()) == (5, 0)


def test_the_roles_loops_are_watched(instance: Instance) -> None:
    for role in ("proxy", "broker", "router", "gateway"):
        assert instance.late_ticks(role).sum() > 0


def test_the_percentile_of_lateness_is_the_upper_end_of_its_bucket() -> None:
    counts = np.zeros(100, dtype=np.uint64)
    assert late_percentile_us(counts, 50.0) == float("inf")
    counts[[3, 7]] = 99, 1
    assert late_percentile_us(counts, 50.0) == 400
    assert late_percentile_us(counts, 99.9) == 800


def test_a_gateway_without_bundles_sends_a_datagram_for_each_delivery() -> None:
    one = Instance("--gateway-alone", "--unbundled")
    try:
        one.start()
        with one.clients(4, rooms=[one.room(LIVE)]) as engine:
            done = engine.saturate(200, 0.05)
        assert done["datagrams"] >= done["delivered"] > 0
        assert done["datagrams_joined"] == 0
        cores = {role: os.sched_getaffinity(pid) for role, pid in one.pids.items()}
        assert cores.pop("gateway") == {pin.SERVER_CORE}
        assert set(map(tuple, cores.values())) == {(pin.DRIVER_CORE,)}
    finally:
        one.stop()


def test_the_feed_hands_the_same_packets_to_all() -> None:
    feed = FeedEngine(senders=20, datagram_bytes=256, seed=1, sockets=True)
    count = feed.prepare(100)
    assert count == 100
    for _ in range(2):
        assert feed.send() == count
        datagrams, _, octets, *_ = _null.drain(feed.sink())
        assert (datagrams, round(octets / datagrams)) == (count, 256)
    feed.send()
    assert feed.receive() == count
    feed.settle()
    feed.prepare(100)
    feed.load()
    assert feed.open() == 100
    feed.load()
    assert feed.machine() == 100
    feed.load()
    assert feed.machine() == 0  # replays


def test_a_plane_in_memory_says_what_each_step_of_its_growth_cost() -> None:
    engine = ScaleEngine(rooms=400, partitions=2, seed=1)
    assert all(figure > 0 for figure in engine.joined())
    started, known = engine.start_broker()
    assert 100 < known < 300  # half of the rooms, as the hash deals them
    assert started[3] > 20 * known  # reported on its link, not guessed
    assert [len(costs) for costs in engine.double()] == [4, 4, 4]
    assert len(engine.change_map(60, 3)) == 3


@pytest.mark.parametrize("role", maps.ENGINES)
def test_every_role_says_what_each_change_of_a_map_cost_it(role: str) -> None:
    assert [spent > 0 for spent in maps.standing_us(role, 30, 3)] == [True] * 3


def test_memberships_held_are_counted_over_all_gateways() -> None:
    assert len(KnownRooms(gateways=3, each=50, seed=1)) == 150
    # A room's number alone is as long. What the imports left free counts for a few bytes of each membership.
    assert scale.held_bytes_of_a_child(2, 200_000) > 8


COUNTING = (commands, failover, isolation, loss, nodes, overload, rejoin)
"""Benches with goals that do not measure time, and hold on any busy machine."""

Shrink = Callable[[pytest.MonkeyPatch], None]


def _small_receive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receive, "SENDERS", (10, 20))
    patch.setattr(receive, "BOUNDS", {10: 1e9, 20: 1e9})
    patch.setattr(receive, "PACKETS", 64)


def _small_memory(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("BASE", 10),
        ("COUNTS_QUICK", (40,)),
        ("JUDGED", 40),
        ("TRAFFIC_SECONDS", 0.2),
        ("SETTLED_SECONDS", 0.1),
    ):
        patch.setattr(memory, name, value)


def _small_fanout(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("FANOUTS", (5,)),
        ("MEMBERS", (5,)),
        ("ROOMS", (2, 20)),
        ("ROOM_MEMBERS", 5),
        ("SIZES", (61_440,)),
    ):
        patch.setattr(fanout, name, value)


def _small_overload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overload, "FANOUTS", (5,))
    patch.setattr(storm, "QUICK", storm.Scale(rooms=20, fanout=3, peak_seconds=0.3, seconds=1.0))


def _small_isolation(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ROOMS", 10),
        ("QUIET_RATE", 100.0),
        ("HOT_QUICK", 40),
        ("HOT_EACH", 5),
        ("CARRIED", 400.0),
        ("BEYOND", 40_000.0),
        ("HOT_SECONDS_QUICK", 0.5),
        ("STILL_MEMBERS", 5),
        ("STILL_SECONDS_QUICK", 0.5),
        ("SLOW_SECONDS_QUICK", 0.5),
    ):
        patch.setattr(isolation, name, value)
    patch.setattr(listeners, "SOCKETS_MAX", 5)  # two processes


def _small_hops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hops, "FANOUTS", (1,))
    patch.setattr(hops, "RATE", 200.0)


def _small_commands(patch: pytest.MonkeyPatch) -> None:
    for name, value in (("WEATHERS_QUICK", (commands.BURSTS,)), ("USERS_QUICK", 200), ("EVERY_SECONDS_QUICK", 0.5)):
        patch.setattr(commands, name, value)


def _small_failover(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ROLES", ("gateway", "router")),
        ("ROOMS", 4),
        ("RATE", 100.0),
        ("NEW_ROOMS", 2),
        ("NEW_MEMBERS", 4),
        ("QUICK", failover.Lasts(0.1, 0.5)),  # a run waits until all are served
    ):
        patch.setattr(failover, name, value)


def _small_loss(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SHAPES", (loss.Shape(1, 5), loss.Shape(4, 2))),
        ("SECONDS_QUICK", 0.2),
        ("WARM_UP_SECONDS", 0.05),
    ):
        patch.setattr(loss, name, value)


def _small_nodes(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("MANY", {"up.brokers": "2x1"}),
        ("ALONE_FANOUT", 5),
        ("FANOUT", 5),
        ("RATE", 1_000.0),
        ("HOPS_FANOUTS", (1,)),
        ("HOPS_RATE", 100.0),
        ("GATEWAY_MEMBERS", 5),
        ("GATEWAY_RATE", 500.0),
        ("SECONDS_QUICK", 0.1),
        ("IDLE_SECONDS", 0.05),
        ("STILL_SECONDS_QUICK", 0.05),
    ):
        patch.setattr(nodes, name, value)
    patch.setattr(targets, "LATE_US_MAX", float("inf"))  # nothing is timed here


def _small_starts(patch: pytest.MonkeyPatch) -> None:
    for name, value in (("NODES_QUICK", 8), ("EACH", 4), ("CHANGES", 1), ("QUIET_S", 0.1), ("APART_S", 1.0)):
        patch.setattr(starts, name, value)


def _small_edge(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("FANOUTS", (5,)),
        ("DELIVERIES_PER_S", 500),
        ("INTERVAL_RATE", 1_000),
        ("SECONDS_QUICK", 0.2),
        ("IDLE_QUICK", 40),
    ):
        patch.setattr(edge, name, value)
    patch.setattr(edge, "LATE", 0.0)  # nothing is timed here
    patch.setattr(edge_servers, "PEERS", ())


def _small_browsers(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ROOMS_QUICK", 5),
        ("MEMBERS_QUICK", 5),
        ("RATE", 20),
        ("SECONDS_QUICK", 0.3),
        ("SLOW_READERS", 2),
        ("SLOW_MESSAGES", 20),
        ("IDLE_QUICK", 8),
        ("BACK_QUICK", 10),
        ("CHAIN_MEMBERS", 5),
        ("CHAIN_RATE", 20),
    ):
        patch.setattr(browsers, name, value)


def _small_rejoin(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(rejoin.SETTINGS, "gateway.keepalive_ms", 1_000)
    patch.setattr(rejoin, "MEMBERS_QUICK", 40)
    patch.setattr(rejoin, "KNOCKING", 5)
    patch.setattr(rejoin, "ROOM_MEMBERS", 10)
    patch.setattr(listeners, "SOCKETS_MAX", 25)  # two processes


def _small_scale(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("PARTITIONS_QUICK", (1, 2)),
        ("ROOMS_QUICK", (50, 300)),
        ("BASE_QUICK", 50),
        ("HELD_QUICK", (2, 20_000)),
        ("MEMBERS", (1, 3)),
        ("MEMBERS_ROOMS_QUICK", 50),
    ):
        patch.setattr(scale, name, value)
    for name, value in (("ROOMS", 100), ("MANY_ROOMS_QUICK", 200), ("NODES", 40), ("BASE", 20), ("TIMES", 2)):
        patch.setattr(maps, name, value)


@pytest.mark.parametrize(
    ("module", "shrink", "goals"),
    [
        (receive, _small_receive, {"PF-2", "PF-3"}),
        (memory, _small_memory, {"PF-12"}),
        (fanout, _small_fanout, {"PF-1", "PF-4"}),
        (overload, _small_overload, {"PF-8", "overload"}),
        (isolation, _small_isolation, {"isolation"}),
        (hops, _small_hops, {"PF-11"}),
        (commands, _small_commands, {"commands"}),
        (edge, _small_edge, {"PF-33", "PF-42"}),
        (browsers, _small_browsers, {"PF-42", "PF-43", "PF-44", "PF-45", "PF-46"}),
        (failover, _small_failover, {"failover"}),
        (loss, _small_loss, {"PF-10"}),
        (nodes, _small_nodes, {"PF-1", "PF-5", "PF-6", "PF-9", "PF-11", "nodes"}),
        (rejoin, _small_rejoin, {"rejoin"}),
        (scale, _small_scale, {"PF-13", "linear", "scale"}),
        (starts, _small_starts, {"PF-37"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_small_run_gives_a_document_with_its_goals(
    monkeypatch: pytest.MonkeyPatch, module: Any, shrink: Shrink, goals: set[str]
) -> None:
    shrink(monkeypatch)
    name = module.__name__.rpartition(".")[2]
    loopback = [] if module in (scale, starts) else ["--loopback", "host"]
    done = CliRunner().invoke(cli.app, [name, "--quick", "--rounds", "1", "--json", *loopback])
    if done.exit_code == cli.EXIT_TRY_LATER:
        pytest.skip(done.stderr)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert list(document) == ["bench", "machine", "cases"]
    assert all(list(case) == FIELDS for case in document["cases"])
    assert {case["goal"].split()[0] for case in document["cases"] if case["goal"]} == goals
    counted = [case for case in document["cases"] if (case["goal"] or "").endswith("<= 0")]
    assert all(case["holds"] for case in counted if module in COUNTING), counted


MODULES = (fanout, receive, overload, memory, hops, commands, failover, isolation, loss, nodes, rejoin, scale)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_check_and_void_runs_decide_the_exit_code(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    name = module.__name__.rpartition(".")[2]
    loopback = [] if module is scale else ["--loopback", "host"]

    def run(answer: Case | Exception) -> int:
        def measure(**_: object) -> tuple[Case, ...]:
            if isinstance(answer, Exception):
                raise answer
            return (answer,)

        monkeypatch.setattr(module, "run", measure)
        return CliRunner().invoke(cli.app, [name, *loopback, "--check"]).exit_code

    assert run(HELD) == 0
    assert run(MISSED) == 1
    assert run(VoidRunError("late")) == 75


def test_claims_name_figures_that_exist() -> None:
    loads = [*compare.loads(quick=False), *compare.paced_loads(quick=False)]
    claims = compare.claims(loads, quick=False)
    assert {claim.goal.id for claim in claims} == {"PF-5", "PF-6", "PF-7"}
    assert {claim.load for claim in claims} <= {load.name for load in loads}


def test_the_command_lists_every_bench() -> None:
    command = [sys.executable, "-m", "bench", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=python_environment())
    for name in (
        "limits",
        "peers",
        "paced",
        "fanout",
        "receive",
        "overload",
        "memory",
        "hops",
        "commands",
        "failover",
        "isolation",
        "loss",
        "nodes",
        "rejoin",
        "scale",
    ):
        assert name in done.stdout
