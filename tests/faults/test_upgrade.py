"""A rolling upgrade under load: half of the nodes speak a further version of the protocol, then all, then half again."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import muster
from tests.faults.instance import APART, Instance, configuration
from tests.faults.ledger import Ledger
from tests.faults.load import nothing_lost, under_load
from tests.releases import first
from tests.waiting import PATIENT_S, until

NODES = {"gateways": 2, "brokers": "1x2", "routers": "1x2", "proxies": 2}
ROOMS = [f"room-{number}" for number in range(8)]
ORDER = ("router", "gateway", "broker", "proxy")
"""Of docs/install.md: receivers before senders."""


class Upgraded(Instance):
    """An instance whose nodes are of this release or of the next one."""

    def __init__(self, path: Path, configuration: str) -> None:
        super().__init__(path, configuration)
        self._next, self._file = set[int](), path / "next.json"
        self._write()

    def _write(self) -> None:
        self._file.write_text(json.dumps(sorted(self._next)))

    @property
    def environment(self) -> dict[str, str]:
        """Also the system that makes nodes stand in for the next release, and its file."""
        return super().environment | {"MUSTER_SYSTEMS": "tests.next", "MUSTERTEST_NEXT": str(self._file)}

    async def restart(self, name: str, *, upgraded: bool) -> None:
        """End a node as an operator does; its next process is of the chosen release."""
        process = self.process(name)
        (self._next.add if upgraded else self._next.discard)(process.node)
        self._write()
        await self.back(name, self.terminate(name))

    def spoken(self) -> dict[int, int]:
        """The number of ends of links by the version of the protocol that they use."""
        found: dict[int, int] = {}
        for name in self.names("router", "broker", "gateway", "proxy"):
            for link in self.status(name)["links"]:
                found[link["protocol"]] = found.get(link["protocol"], 0) + 1
        return found


async def old_client(address: Any, at: int) -> None:
    """What a user of the release before does, at this gateway and this proxy."""
    member = await first.Session.opened(address.gateways[at], address.token)
    publisher = await first.Session.opened(address.proxies[at], address.token)
    try:
        handle, _ = await member.join("of-old-clients")
        await publisher.publish("of-old-clients", [b"one", b"two"])
        assert [each.data for each in await member.received(2)] == [b"one", b"two"]
        await member.leave(handle)
    finally:
        await member.close()
        await publisher.close()


async def test_a_rolling_upgrade_and_its_rollback_lose_nothing_and_serve_clients_of_both_releases(
    figures: Callable[..., None], tmp_path: Path
) -> None:
    sections: dict[str, dict[str, Any]] = {"up": APART | NODES, "database": {"url": "none"}, "probes": {"every_ms": 0}}
    instance, ledger = Upgraded(tmp_path, configuration(**sections)), Ledger(ROOMS, rate=100.0)
    seen: list[dict[int, int]] = []
    with instance.running():
        address = muster.instance.find(instance.folder.path)
        half, rest = ([instance.names(role)[at] for role in ORDER] for at in (0, 1))
        async with under_load(instance, ledger):
            for names, upgraded in ((half, True), (rest, True), (rest[::-1], False)):
                for name in names:
                    await until(partial(ledger.reached, ledger.mark()), PATIENT_S)
                    await instance.restart(name, upgraded=upgraded)
                for at in (0, 1):
                    await old_client(address, at)
                seen.append(instance.spoken())
            lost = [client.stats()["sessions_lost"] for client in ledger.clients]
    figures(links=seen, lost=lost, **ledger.load())
    nothing_lost(ledger)
    assert set(seen[0]) == {1, 2}, "two of the next release use its version, all others the former"
    assert set(seen[1]) == {2}
    assert set(seen[2]) == {1, 2}
