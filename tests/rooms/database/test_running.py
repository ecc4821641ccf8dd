"""`muster up --database` under load: database and router are killed; the warm start is used, or reported missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import strikes
from tests.databases import PASSWORD, QUOTED, Database
from tests.faults.instance import APART, Instance, configuration
from tests.faults.ledger import Ledger
from tests.faults.load import came, nothing_lost, under_load
from tests.waiting import PATIENT_S, until

ROOMS = [f"room-{number}" for number in range(12)]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Instance]:
    """Make an instance that stores memberships in this database."""

    def made(database: Database, **up: Any) -> Instance:
        password = tmp_path / "password"
        password.write_text(PASSWORD + "\n")
        url = database.url.replace(f":{QUOTED}@", "@")
        keys = {"url": url, "password_file": "" if url == database.url else str(password)}
        return Instance(tmp_path / "up", configuration(up=APART | up, database=keys, probes={"every_ms": 0}))

    return made


def kept(instance: Instance, node: str = "router") -> dict[str, Any]:
    """A router's state with its database."""
    found: dict[str, Any] = instance.status(node)["database"]
    return found


def is_written(instance: Instance, node: str = "router") -> bool:
    """Whether all changes are in the database."""
    found = kept(instance, node)
    return bool(found["connected"] and found["written"] and not found["waiting"])


def over(first: str, *others: str) -> pytest.MarkDecorator:
    """This database in `make test`, the others in the soak."""
    return pytest.mark.parametrize(
        "database", [first, *(pytest.param(name, marks=pytest.mark.soak) for name in others)], indirect=True
    )


@over("mariadb", "postgresql", "sqlite")
async def test_a_killed_router_begins_with_what_was_kept(database: Database, make: Callable[..., Instance]) -> None:
    instance, ledger = make(database), Ledger(ROOMS, rate=400.0)
    with instance.running():
        async with under_load(instance, ledger):
            await until(lambda: is_written(instance), PATIENT_S)
            wanted = instance.interest("gateway")
            async with instance.stopped("gateway"):
                # All interest is known although the only gateway that could report it stands still.
                dead = {name: instance.process(name).pid for name in ("router", "broker")}
                for pid in dead.values():
                    strikes.kill(pid)
                for name, pid in dead.items():
                    await until(lambda name=name, pid=pid: instance.process(name).pid not in {0, pid}, PATIENT_S)  # type: ignore[misc]
                await instance.back("router", dead["router"])
                await until(lambda: instance.interest("router") == wanted)
                assert kept(instance)["warm_start"] == f"warm start with {len(wanted)} memberships"
                await instance.back("broker", dead["broker"])
                await until(lambda: instance.interest("broker") == wanted)
            await came(ledger)
            await until(instance.interest_agrees, PATIENT_S)
        log = instance.log.read_text()
    ledger.check()
    assert PASSWORD not in log
    # A gateway that stood still for longer than 256 messages of a room gets the last 256 of a stream that began meanwhile.
    assert set(ledger.gaps()) <= {"owner_lost", "ended", "expired"}, "a broker died, and a gateway stood still"


@over("postgresql", "mariadb")
async def test_a_dead_database_costs_no_message_and_is_written_again_when_it_is_back(
    database: Database, make: Callable[..., Instance]
) -> None:
    instance, ledger = make(database, gateways=2, routers="1x2"), Ledger(ROOMS, rate=400.0)
    with instance.running():
        async with under_load(instance, ledger):
            await until(lambda: is_written(instance) and is_written(instance, "router-1"), PATIENT_S)
            database.kill()
            dead = instance.kill("router")
            await instance.back("router", dead)
            await until(lambda: kept(instance)["error"], PATIENT_S)
            assert kept(instance)["warm_start"] == "no warm start"
            assert instance.metrics("router")["database_connected"] == 0
            await until(instance.interest_agrees, PATIENT_S)
            await came(ledger)
            assert kept(instance)["waiting"] > 0
            assert kept(instance)["dropped"] == 0
            database.start()
            await until(lambda: is_written(instance) and is_written(instance, "router-1"), PATIENT_S)
            dead = instance.kill("router")
            await instance.back("router", dead)
            await until(lambda: kept(instance)["warm_start"].startswith("warm start with"), PATIENT_S)
            await came(ledger)
    nothing_lost(ledger)
