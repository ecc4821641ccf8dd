"""The prober's log of alarms, without any node."""

import structlog
from structlog.testing import capture_logs

import muster
from muster_server.control.registry.places import Snapshot
from muster_server.systems.probes.paths import Ledger
from muster_server.systems.probes.prober import LINES_MAX, Prober, Source
from muster_server.systems.probes.system import Probes


def fail(ledger: Ledger, gateways: int) -> None:
    """All paths by one broker, to this many gateways."""
    ledger.send(0.0, 4, 2, range(10, 10 + gateways))
    for at in (100.0, 200.0):
        ledger.send(at, 4, 2, range(10, 10 + gateways))
        ledger.pass_time(at + 1.0)


def test_a_node_with_which_thousands_of_paths_fail_is_a_few_lines() -> None:
    source = Source(Snapshot, muster.Address((), (), b""), bytes(16))
    with capture_logs() as logged:
        prober = Prober(Probes(failures=2, timeout_ms=1_000), source, structlog.get_logger())
        fail(prober.ledger, 1_000)
        prober._sum_up()
        prober._sum_up()
    assert [line["event"] for line in logged] == ["path fails"] * LINES_MAX + ["more paths fail, or work again"]
    assert (logged[-1]["more"], logged[-1]["failing"]) == (1_000 - LINES_MAX, 1_000)
    assert prober.ledger.alarms == 1_000
