"""The times of each hop of a question, path by path: the last ones, and none of nodes that left."""

from muster import Hop
from muster_server.systems.probes.hops import KEPT, Hops
from muster_server.systems.probes.paths import Path

PROXY, BROKER, GATEWAY, OTHER = 4, 2, 3, 7


def test_a_question_times_the_broker_and_each_gateway_that_it_names() -> None:
    hops = Hops()
    hops.take(PROXY, [Hop(BROKER, 1.0)])
    hops.follow([(PROXY, BROKER), (PROXY, OTHER)], [GATEWAY, OTHER])
    assert hops.of(Path(PROXY, BROKER, GATEWAY)) == []
    for ms in (4, 1, 2):
        hops.take(PROXY, [Hop(BROKER, ms / 1000), Hop(GATEWAY, ms / 2000), Hop(OTHER, 0.25)])
    broker, gateway = hops.of(Path(PROXY, BROKER, GATEWAY))
    assert (broker.node, broker.seen, broker.last_ms, broker.p50_ms, broker.max_ms) == (BROKER, 3, 2.0, 2.0, 4.0)
    assert (gateway.node, gateway.seen, gateway.last_ms, gateway.p50_ms, gateway.max_ms) == (GATEWAY, 3, 1.0, 1.0, 2.0)
    assert [hop.node for hop in hops.of(Path(PROXY, OTHER, GATEWAY))] == []
    hops.take(PROXY, [Hop(OTHER, 0.001)])
    assert [hop.node for hop in hops.of(Path(PROXY, OTHER, GATEWAY))] == [OTHER], (
        "the gateway was not among those named"
    )
    hops.take(PROXY, [])


def test_the_times_are_the_last_ones_and_go_with_their_nodes() -> None:
    hops = Hops()
    hops.follow([(PROXY, BROKER)], [GATEWAY])
    for ms in range(KEPT + 5):
        hops.take(PROXY, [Hop(BROKER, ms / 1000), Hop(GATEWAY, 0.001)])
    (broker, _) = hops.of(Path(PROXY, BROKER, GATEWAY))
    assert (broker.seen, broker.max_ms) == (KEPT, float(KEPT + 4))
    hops.follow([(PROXY, BROKER)], [OTHER])
    assert [hop.node for hop in hops.of(Path(PROXY, BROKER, GATEWAY))] == [BROKER]
    hops.follow([], [OTHER])
    assert hops.of(Path(PROXY, BROKER, GATEWAY)) == []
