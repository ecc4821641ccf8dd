"""What a reading changes: nothing broken, nothing old, and no sudden end of half of a role."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from muster_server.control.registry.places import VALUE_MAX, Ack, Node, encode
from muster_server.control.registry.view import HOLD_S, SAID_MAX, View
from tests.control.nodes import growth, partitions

COUNTS = {"router/partition_num": b'{"partitions": 1}', "broker/main/partition_num": b'{"partitions": 2}'}


def proxy(number: int, **more: Any) -> Node:
    return Node(number, "proxy", "127.0.0.1", 7_000 + number, **more)


def broker(number: int, partition: int = 0, **more: Any) -> Node:
    return Node(number, "broker", "127.0.0.1", 7_000 + number, partition, **more)


def reading(*nodes: Node, **paths: bytes) -> dict[str, bytes]:
    """As the tree would hold them, each under its number."""
    made = dict(COUNTS)
    for node in nodes:
        place = node.role if node.role == "proxy" else f"broker/{node.cluster}/partition{node.partition}"
        made[f"{place}/{node.node}-{node.epoch}"] = encode(node)
    return made | paths


def numbers(view: View) -> list[int]:
    return [node.node for node in view.snapshot.nodes]


@pytest.fixture
def view() -> View:
    return View(structlog.get_logger(), epoch=6)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def test_a_snapshot_is_new_only_when_something_changed(view: View) -> None:
    assert view.take(reading(proxy(1), broker(2), broker(3, 1)), 0.0)
    first = view.snapshot
    assert (first.epoch, numbers(view), partitions(first)) == (7, [1, 2, 3], (2, 1))
    assert not view.take(reading(proxy(1), broker(2), broker(3, 1)), 1.0)
    assert view.snapshot is first
    assert view.take(reading(proxy(1), broker(2, state="draining"), broker(3, 1)), 2.0)
    assert view.snapshot.epoch == 8
    assert [node.state for node in first.nodes] == ["running"] * 3


def test_a_partition_without_a_replica_that_runs_is_known_where_somebody_needs_it(view: View) -> None:
    assert view.snapshot.uncovered() == {}, "there is nobody"
    more = {"broker/chat/partition_num": b'{"partitions": 1}', "broker/old/partition_num": b'{"partitions": 1}'}
    view.take(reading(proxy(1), broker(2), broker(3, state="init"), proxy(4, cluster="chat"), **more), 0.0)
    assert view.snapshot.uncovered() == {"router": [0], "broker/chat": [0], "broker/main": [1]}
    growing = b'{"partitions": 2, "serial": 1, "growth": {"to": 4, "step": "%s", "goal": 4, "coordinator": "me"}}'
    for step, missing in ((b"prepare", [1]), (b"switched", [1, 3])):
        prepared = {"broker/main/partition_num": (growing % step).replace(b": 1,", b": %d," % (1 + len(missing)))}
        view.take(reading(proxy(1), broker(2), broker(3, 2), **prepared), 20.0)
        assert view.snapshot.uncovered()["broker/main"] == missing, "what is only prepared has no rooms"


def test_the_partition_with_the_fewest_replicas_is_known_by_layer(view: View) -> None:
    assert view.snapshot.replicas_least() == {}
    view.take(reading(proxy(1), broker(2), broker(3, 1), broker(4, 1)), 0.0)
    assert view.snapshot.replicas_least() == {"router": 0, "broker/main": 1}
    view.take(reading(proxy(1), broker(2), broker(3, 1), broker(4, 1), broker(5), broker(6, state="draining")), 20.0)
    assert view.snapshot.replicas_least()["broker/main"] == 2


def test_an_engine_gets_the_brokers_of_its_cluster(view: View) -> None:
    more = {"broker/other/partition_num": b'{"partitions": 4}'}
    view.take(reading(proxy(1), broker(2, 1), broker(3, 3, cluster="other")) | more, 0.0)
    assert [entry[0] for entry in view.snapshot.entries("router")] == [1, 2]
    assert [entry[0] for entry in view.snapshot.entries("router", "other")] == [1, 3]
    assert partitions(view.snapshot, "other") == (4, 1)


@pytest.mark.parametrize(
    ("forged", "cause"),
    [
        (b"", "truncated"),
        (b"nonsense", "malformed"),
        (b"\xff\xfe{}", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"x": ' + b"[" * 4_000, "recursion"),
        (b'{"node": 2, "role": "broker", "host": "127.0.0.1"}', "link_port"),
        (b'{"node": "2", "role": "broker", "host": "127.0.0.1", "link_port": 1}', "Expected `int`"),
        (b'{"node": 0, "role": "broker", "host": "127.0.0.1", "link_port": 1}', ">= 1"),
        (b'{"node": 4294967296, "role": "broker", "host": "127.0.0.1", "link_port": 1}', "<= 4294967295"),
        (b'{"node": 2, "role": "broker", "host": "127.0.0.1", "link_port": 65536}', "<= 65535"),
        (b'{"node": 2, "role": "queen", "host": "127.0.0.1", "link_port": 1}', "has the role queen"),
        (b'{"node": 2, "role": "router", "host": "127.0.0.1", "link_port": 1}', "has the role router"),
        (b'{"node": 2, "role": "broker", "host": "example.org", "link_port": 1}', "invalid address"),
        (b'{"node": 2, "role": "broker", "host": "0.0.0.0", "link_port": 1}', "cannot be the address of a process"),
        (b'{"node": 2, "role": "broker", "host": "127.0.0.1", "link_port": 1, "state": "glad"}', "Invalid enum"),
        (b'{"node": 2, "role": "broker", "host": "127.0.0.1", "link_port": 1, "partition": 1}', "has partition 1"),
        (b'{"node": 2, "role": "broker", "host": "127.0.0.1", "link_port": 1, "cluster": "b"}', "broker/b"),
        (b'{"node": 2, "role": "broker", "host": "127.0.0.1", "link_port": 1, "public_key": "x"}', "public_key"),
        (b'{"node": 2' + b" " * VALUE_MAX + b"}", f"limit {VALUE_MAX}"),
    ],
)
def test_a_broken_value_is_said_once_and_the_last_good_one_stays(
    view: View, lines: list[Any], forged: bytes, cause: str
) -> None:
    view.take(reading(broker(2), broker(3)), 0.0)
    good = view.snapshot
    path = "broker/main/partition0/2-0"
    for now in (1.0, 2.0):
        assert not view.take(reading(broker(3)) | {path: forged}, now)
    assert view.snapshot is good
    said = [line for line in lines if line["event"] == "registry: refused"]
    assert [line["path"] for line in said] == [path]
    assert cause.lower() in said[0]["cause"].lower()
    assert view.take(reading(broker(2, state="draining"), broker(3)), 3.0)
    assert not view.take(reading(broker(2, state="draining"), broker(3)) | {path: forged}, 4.0)
    assert len([line for line in lines if line["event"] == "registry: refused"]) == 2


def test_a_flood_of_broken_values_is_a_few_lines(view: View, lines: list[Any]) -> None:
    flood = {f"proxy/x{number}": b"{}" for number in range(10 * SAID_MAX)}
    view.take(reading(proxy(1)) | flood, 0.0)
    view.take(reading(proxy(1)) | flood, 1.0)
    assert (numbers(view), len(view.refused), view.refusals) == ([1], 10 * SAID_MAX, 10 * SAID_MAX)
    assert [line["event"] for line in lines] == ["registry: refused"] * SAID_MAX + ["registry: refused further values"]
    assert lines[-1]["values"] == 9 * SAID_MAX


def test_what_was_never_good_is_not_there(view: View, lines: list[Any]) -> None:
    strays = {
        "broker/main/partition0/x": b"nonsense",
        "broker/main/partition2/x": encode(broker(4, 2)),
        "broker/main/partition256/x": b"",
        "broker/main/partition01/x": encode(broker(5, 1)),
        "broker/new/partition0/x": encode(broker(6, cluster="new")),
        "broker/main/stray": b"{}",
        "router/stray": b"{}",
    }
    view.take(reading(broker(2)) | strays, 0.0)
    assert numbers(view) == [2]
    assert {line["path"] for line in lines} == set(strays)
    assert {line["path"]: line["cause"] for line in lines}["broker/main/partition2/x"] == "partition 2 of 2"


@pytest.mark.parametrize(
    ("forged", "cause"),
    [
        (b"4", "Expected `object`"),
        (b'{"partitions": 3}', "expected a power of two"),
        (b'{"partitions": 0}', ">= 1"),
        (b'{"partitions": 512}', "<= 256"),
        (b'{"partitions": 1}', "must not fall"),
        (b'{"partitions": 2.0}', "Expected `int`"),
    ],
)
def test_a_count_is_a_power_of_two_that_never_falls(view: View, lines: list[Any], forged: bytes, cause: str) -> None:
    view.take(reading(broker(2, 1)), 0.0)
    good = view.snapshot
    assert not view.take(reading(broker(2, 1)) | {"broker/main/partition_num": forged}, 1.0)
    assert view.snapshot is good
    assert cause in lines[0]["cause"]


PREPARED = b'{"partitions":2,"serial":4,"growth":{"to":4,"step":"prepare","goal":8,"coordinator":"a"}}'
SWITCHED = PREPARED.replace(b"prepare", b"switched").replace(b'"serial":4', b'"serial":5')
FINAL = b'{"partitions":4,"serial":6,"growth":{"to":4,"step":"final","goal":8,"coordinator":"a"}}'
GROWN = b'{"partitions":4,"serial":7}'
NEXT = b'{"partitions":4,"serial":8,"growth":{"to":8,"step":"prepare","goal":8,"coordinator":"b"}}'
RECORD = "broker/main/partition_num"


def growing(record: bytes, *nodes: Node) -> dict[str, bytes]:
    return reading(*nodes) | {RECORD: record}


def test_a_growth_goes_step_by_step_or_several_at_once_and_its_nodes_are_in_the_map(view: View) -> None:
    every = (COUNTS[RECORD], PREPARED, SWITCHED, FINAL, GROWN, NEXT)
    steps = [((2, 1), (0, 0)), ((2, 1), (1, 0)), ((2, 1), (2, 0)), ((4, 1), (0, 0)), ((4, 1), (0, 0)), ((4, 1), (1, 0))]
    nodes = broker(2), broker(3, 3), broker(4, 2)
    for record, step in zip(every, steps, strict=True):
        assert view.take(growing(record, *nodes), 0.0)
        assert (partitions(view.snapshot), growth(view.snapshot)) == step
        assert numbers(view) == ([2] if record == every[0] else [2, 3, 4])
    for first in range(len(every)):
        for second in range(first + 1, len(every)):
            late = View(structlog.get_logger())
            late.take(growing(every[first], *nodes), 0.0)
            assert late.take(growing(every[second], *nodes), 1.0)
            assert (partitions(late.snapshot), growth(late.snapshot)) == steps[second]
            assert not late.refused


def test_partitions_of_a_growth_that_was_given_up_go_and_come_with_the_next_one(view: View) -> None:
    nodes = broker(2), broker(3, 3)
    view.take(growing(PREPARED, *nodes), 0.0)
    assert numbers(view) == [2, 3]
    assert view.take(growing(b'{"partitions":2,"serial":5}', *nodes), 1.0)
    assert (numbers(view), growth(view.snapshot)) == ([2], (0, 0))
    assert view.take(growing(PREPARED.replace(b'"serial":4', b'"serial":6'), *nodes), 2.0)
    assert numbers(view) == [2, 3]


@pytest.mark.parametrize("record", [SWITCHED, FINAL, GROWN, NEXT, b'{"partitions":4}'])
def test_no_partition_loses_its_owner_by_a_count_that_gives_its_rooms_to_nobody(view: View, record: bytes) -> None:
    if b"serial" in record:
        view.take(growing(PREPARED, broker(2), broker(3, 1), broker(4, 2, state="init")), 0.0)
    else:
        view.take(reading(broker(2), broker(3, 1)), 0.0)
    good, owners = view.snapshot, (broker(2), broker(3, 1), broker(4, 2))
    for nodes in (owners, (*owners, broker(5, 3, state="init"))):
        view.take(growing(record, *nodes), 1.0)
        assert view.snapshot.counts is good.counts or view.snapshot.counts == good.counts
        assert view.refused[RECORD] == "4 partitions, but no replica of 3 runs, and other partitions have its rooms"
    assert view.take(growing(record, *owners, broker(5, 3)), 2.0)
    assert view.snapshot.counts["broker/main"].used == 4
    assert view.refused == {}


@pytest.mark.parametrize("hold_s", [HOLD_S, 0.0])
def test_a_new_partition_whose_last_replica_dies_as_it_gets_its_rooms_has_them(hold_s: float) -> None:
    view = View(structlog.get_logger(), hold_s=hold_s)
    nodes = broker(2), broker(3, 1), broker(4, 2)
    view.take(growing(PREPARED, *nodes, broker(5, 3)), 0.0)
    assert view.take(growing(SWITCHED, *nodes), 1.0)
    assert growth(view.snapshot) == (2, 0)
    assert view.take(growing(GROWN, *nodes), 1.0 + 2 * HOLD_S)
    assert partitions(view.snapshot) == (4, 1)


def test_partitions_that_nobody_owned_may_be_more_with_nobody_in_them(view: View) -> None:
    view.take(reading(broker(2), broker(3, 1, state="init")), 0.0)
    assert view.take(growing(GROWN, broker(2), broker(4, 2)), 1.0)
    assert partitions(view.snapshot) == (4, 1)


@pytest.mark.parametrize(
    ("before", "forged", "cause"),
    [
        (COUNTS[RECORD], PREPARED.replace(b'"to":4', b'"to":8'), "a growth must double"),
        (COUNTS[RECORD], PREPARED.replace(b'"to":4', b'"to":3'), "a growth must double"),
        (COUNTS[RECORD], PREPARED.replace(b'"goal":8', b'"goal":6'), "has the goal 6"),
        (COUNTS[RECORD], PREPARED.replace(b'"goal":8', b'"goal":2'), "has the goal 2"),
        (COUNTS[RECORD], PREPARED.replace(b"prepare", b"dance"), "Invalid enum value"),
        (COUNTS[RECORD], PREPARED.replace(b'"serial":4', b'"serial":-4'), ">= 0"),
        (COUNTS[RECORD], PREPARED.replace(b'"serial":4,', b""), "has no serial number"),
        (COUNTS[RECORD], PREPARED.replace(b'"coordinator":"a"', b'"coordinator":""'), "length >= 1"),
        (COUNTS[RECORD], PREPARED.replace(b'"growth":{', b'"growth":[{'), "got `array`"),
        (COUNTS[RECORD], FINAL.replace(b'"to":4', b'"to":8'), "a growth must double"),
        (PREPARED, COUNTS[RECORD], "serial number 0 after 4"),
        (PREPARED, PREPARED.replace(b'"a"', b'"b"'), "serial number 4 after 4"),
        (SWITCHED, PREPARED, "serial number 4 after 5"),
        (SWITCHED, PREPARED.replace(b'"serial":4', b'"serial":9'), "has already taken effect"),
        (SWITCHED, b'{"partitions":2,"serial":9}', "2 partitions after the switch to 4"),
        (FINAL, SWITCHED.replace(b'"serial":5', b'"serial":9'), "the number must not fall"),
        (FINAL, PREPARED.replace(b'"serial":4', b'"serial":9'), "the number must not fall"),
        (GROWN, b'{"partitions":4}', "serial number 0 after 7"),
        (GROWN, b'{"partitions":2,"serial":9}', "the number must not fall"),
        (GROWN, b'{"partitions":4,"serial":4294967295}', "serial number 4294967295 after 7"),
        (GROWN, b'{"partitions":4,"serial":65544}', "serial number 65544 after 7"),
    ],
)
def test_a_growth_that_cannot_be_is_said_and_the_last_good_map_stays(
    view: View, lines: list[Any], before: bytes, forged: bytes, cause: str
) -> None:
    view.take(growing(before, broker(2, 1)), 0.0)
    good = view.snapshot
    for now in (1.0, 2.0):
        assert not view.take(growing(forged, broker(2, 1)), now)
    assert view.snapshot is good
    assert cause in view.refused[RECORD]
    assert view.refusals == len(lines) == 1
    assert not view.take(growing(before, broker(2, 1)), 3.0)
    assert view.refused == {}


def test_acknowledgements_are_known_and_no_part_of_the_map(view: View) -> None:
    view.take(growing(PREPARED, broker(2, 1), broker(3, 3)), 0.0)
    assert view.acks == {2: (), 3: ()}
    ack = Ack("broker/main", 4, True)
    assert not view.take(growing(PREPARED, broker(2, 1, acks=(ack,)), broker(3, 3)), 1.0)
    assert view.acks == {2: (ack,), 3: ()}
    assert view.snapshot.nodes == (broker(2, 1), broker(3, 3))


def test_a_count_that_is_gone_stays_known(view: View) -> None:
    view.take(reading(broker(2, 1)), 0.0)
    gone = reading(broker(2, 1))
    del gone["broker/main/partition_num"]
    assert not view.take(gone, 1.0)
    assert partitions(view.snapshot) == (2, 1)


def test_of_one_number_the_highest_epoch_counts(view: View, lines: list[Any]) -> None:
    view.take(reading(broker(2, epoch=5), proxy(1)), 0.0)
    view.take(reading(broker(2, epoch=5), broker(2, 1, epoch=6), proxy(1)), 1.0)
    assert [(node.node, node.partition, node.epoch) for node in view.snapshot.nodes] == [(1, 0, 0), (2, 1, 6)]
    assert not view.take(reading(broker(2, 1, epoch=6), proxy(1)), 2.0)
    assert lines == []


def test_two_with_one_number_are_neither_but_the_one_that_was(view: View, lines: list[Any]) -> None:
    impostor = Node(1, "broker", "127.0.0.9", 9, epoch=99)
    view.take(reading(proxy(1, epoch=5), broker(2, epoch=5)), 0.0)
    good = view.snapshot
    assert not view.take(reading(proxy(1, epoch=5), broker(2, epoch=5), impostor), 1.0)
    twin = {"broker/main/partition0/twin": encode(broker(2, 0, epoch=5, version="forged"))}
    assert not view.take(reading(proxy(1, epoch=5), broker(2, epoch=5)) | twin, 1.0)
    assert view.snapshot is good
    assert [line["path"] for line in lines] == ["broker/main/partition0/1-99", "broker/main/partition0/twin"]
    fresh = View(structlog.get_logger())
    fresh.take(reading(proxy(1, epoch=5), impostor), 0.0)
    assert numbers(fresh) == []


def test_up_to_half_may_go_at_once(view: View) -> None:
    view.take(reading(*(proxy(number) for number in range(1, 5))), 0.0)
    assert view.take(reading(proxy(1), proxy(2)), 1.0)
    assert numbers(view) == [1, 2]
    assert view.deadline is None


def test_more_than_half_are_kept_for_a_while(view: View, lines: list[Any]) -> None:
    view.take(reading(*(proxy(number) for number in range(1, 6))), 0.0)
    full = view.snapshot
    assert not view.take(reading(proxy(1), proxy(2)), 1.0)
    assert view.snapshot is full
    assert lines[0]["nodes"] == [3, 4, 5]
    assert view.deadline == 1.0 + HOLD_S
    assert not view.take(reading(proxy(1), proxy(2)), HOLD_S)
    assert view.take(reading(proxy(1), proxy(2), proxy(3)), HOLD_S) is False
    assert view.pass_time(1.0 + HOLD_S)
    assert numbers(view) == [1, 2, 3]


def test_a_partition_counts_by_itself_and_the_role_as_a_whole(view: View) -> None:
    every = [broker(number, number % 2) for number in range(1, 9)]
    view.take(reading(*every), 0.0)
    assert not view.take(reading(*(node for node in every if node.node in {2, 4, 6, 8, 1})), 1.0)
    assert numbers(view) == list(range(1, 9))
    other = View(structlog.get_logger())
    other.take(reading(*every), 0.0)
    assert not other.take(reading(*every[:2], every[2]), 1.0)
    assert numbers(other) == list(range(1, 9))


def test_who_drains_may_go_whoever_else_does(view: View) -> None:
    view.take(reading(broker(2, state="draining"), broker(3, state="draining"), broker(4)), 0.0)
    assert view.take(reading(broker(4)), 1.0)
    assert numbers(view) == [4]


def test_replacements_let_go_of_what_is_held(view: View) -> None:
    view.take(reading(proxy(1), proxy(2), proxy(3)), 0.0)
    view.take(reading(), 1.0)
    assert numbers(view) == [1, 2, 3]
    elsewhere = Node(9, "proxy", "127.0.0.1", 7_001)  # another number at the address of node 1
    assert view.take(reading(elsewhere), 2.0)
    assert numbers(view) == [2, 3, 9]
    assert view.take(reading(elsewhere, proxy(10), proxy(11)), 3.0)
    assert numbers(view) == [9, 10, 11]


def test_a_role_that_is_gone_for_good_is_let_go_in_the_end(view: View) -> None:
    view.take(reading(proxy(1), broker(2)), 0.0)
    view.take(reading(broker(2)), 1.0)
    view.again(5.0)
    assert not view.pass_time(1.0 + HOLD_S)
    assert view.pass_time(5.0 + HOLD_S)
    assert numbers(view) == [2]
    assert not view.take(reading(broker(2)), 20.0)


def test_the_first_count_that_is_read_is_not_believed_against_all_who_go_by_another_one(
    view: View, lines: list[Any]
) -> None:
    path = "broker/main/partition_num"
    forged = reading(broker(1, among=1), broker(2, among=1), proxy(3)) | {path: b'{"partitions":256}'}
    view.take(forged, 0.0)
    assert path in view.refused
    assert numbers(view) == [3], "of whose layer nothing is known yet"
    assert "all registered nodes use 1" in lines[0]["cause"]
    view.take(forged | {path: b'{"partitions":1}'}, 1.0)
    assert (view.refused, numbers(view)) == ({}, [1, 2, 3])
    assert all(node.among == 0 for node in view.snapshot.nodes), "it is no part of the map"


@pytest.mark.parametrize("among", [(0, 0), (0, 2), (1, 2)])
def test_a_first_count_that_somebody_goes_by_or_of_which_nobody_says_anything_is_believed(
    view: View, among: tuple[int, int]
) -> None:
    view.take(reading(broker(1, among=among[0]), broker(2, 1, among=among[1])), 0.0)
    assert (view.refused, numbers(view), partitions(view.snapshot)) == ({}, [1, 2], (2, 1))


# --- a few changes -----------------------------------------------------------------------------------------------


SLOTS = st.tuples(
    st.integers(1, 9),
    st.one_of(
        st.none(),
        st.builds(
            lambda role, partition, state, weight, epoch: (role, partition, state, weight, epoch),
            st.sampled_from(["proxy", "broker"]),
            st.integers(0, 2),
            st.sampled_from(["running", "draining", "init"]),
            st.integers(1, 3),
            st.integers(1, 3),
        ),
        st.just("junk"),
    ),
)


@settings(max_examples=300)
@given(st.lists(st.lists(SLOTS, max_size=3), max_size=12))
def test_what_a_few_changes_make_is_what_the_whole_reading_makes(steps: list[list[Any]]) -> None:
    log = structlog.wrap_logger(None, processors=[], wrapper_class=structlog.make_filtering_bound_logger(50))
    whole, few, paths = View(log), View(log), dict[str, bytes](COUNTS)
    paths |= reading(*(proxy(number, name=f"n{number}") for number in range(20, 26)))
    assert whole.take(paths, 0.0) == few.take(paths, 0.0)
    for at, step in enumerate(steps):
        changes = dict[str, bytes | None]()
        for slot, what in step:
            for path in [path for path in paths if path.endswith(f"/{slot}-0")]:
                changes[path] = None
                del paths[path]
            if what is None:
                continue
            if what == "junk":
                made = {f"proxy/{slot}-0": b"junk"}
            else:
                role, partition, state, weight, epoch = what
                node = proxy(slot) if role == "proxy" else broker(slot, partition)
                node = msgspec.structs.replace(node, state=state, weight=weight, epoch=epoch, node=1 + slot % 7)
                place = "proxy" if role == "proxy" else f"broker/main/partition{partition}"
                made = {f"{place}/{slot}-0": encode(node)}
            paths |= made
            changes |= made
        took = whole.take(dict(paths), at + 1.0)
        quick = few.change(changes)
        assert took == (few.take(dict(paths), at + 1.0) if quick is None else quick)
        assert whole.snapshot == few.snapshot
        assert whole.refused == few.refused
        for number in range(10):
            assert whole.claims(number) == few.claims(number)
        assert dict(whole.present()) == dict(few.present())
