"""The arguments of a router's engine."""

from pathlib import Path

import msgspec

from muster_server import _engines
from muster_server.systems.rooms import build
from tests.control.players import spec


def test_a_router_holds_as_many_memberships_as_its_spec_says(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("07" * 32)
    secret.chmod(0o600)
    told = msgspec.structs.replace(spec(1, "router"), cluster_secret_file=str(secret), link_bind=("127.0.0.1", 0))
    engine = build.router(told, told.settings).engine
    assert isinstance(engine, _engines.RouterEngine)
    assert engine.hint(3, 1, [(room, 1, 1) for room in range(3)]) == 2
    gauges = {name: value for name, _, value in engine.gauges()}
    assert (gauges["interest"], gauges["interest_max"]) == (2.0, 2.0)
    first, following = engine.interest((0, 0), 1)
    assert following is not None
    assert sorted(first + engine.interest(following, 10)[0]) == [(3, 0), (3, 1)]
    engine.close()
