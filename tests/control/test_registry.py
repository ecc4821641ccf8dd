"""The registry gives immutable snapshots whose epoch grows with every change and only then."""

from control.registry import Node, Registry

GATEWAY = Node(3, "gateway", "127.0.0.1", 7000)
BROKER = Node(2, "broker", "127.0.0.1", 7001)


def test_every_change_makes_a_newer_snapshot_and_leaves_the_old_one() -> None:
    registry = Registry()
    empty = registry.snapshot
    one = registry.register(GATEWAY)
    two = registry.register(BROKER)
    assert (empty.epoch, one.epoch, two.epoch) == (0, 1, 2)
    assert empty.nodes == ()
    assert one.nodes == (GATEWAY,)
    assert two.entries() == [
        (2, "broker", "127.0.0.1", 7001, 0, "running"),
        (3, "gateway", "127.0.0.1", 7000, 0, "running"),
    ]
    assert two.partitions() == (1, 1)
    assert Registry(4, 2).register(GATEWAY).partitions() == (4, 2)
    assert two.of("gateway") == (GATEWAY,)


def test_saying_the_same_again_changes_nothing() -> None:
    registry = Registry()
    assert registry.register(GATEWAY) is registry.register(GATEWAY)
    assert registry.remove(99) is registry.snapshot


def test_a_node_that_moves_is_there_once() -> None:
    registry = Registry()
    registry.register(GATEWAY)
    moved = Node(3, "gateway", "127.0.0.1", 7002)
    assert registry.register(moved).nodes == (moved,)
    assert registry.remove(3).nodes == ()
