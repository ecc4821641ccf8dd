"""A rolling upgrade under load: half of the nodes speak a further version of the protocol, then all, then half again."""

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.faults.ledger import Ledger
from tests.faults.load import PATIENT_S, nothing_lost, under_load
from tests.releases import first
from tests.waiting import until

NODES = {"gateways": 2, "brokers": "1x2", "routers": "1x2", "proxies": 2}
ROOMS = [f"room-{number}" for number in range(8)]


class Releases:
    """The release of each node of an instance."""

    def __init__(self, instance: Instance, file: Path) -> None:
        self._instance, self._file, self._next = instance, file, set[int]()
        self._write()

    def _write(self) -> None:
        self._file.write_text(json.dumps(sorted(self._next)))

    async def restart(self, name: str, *, upgraded: bool) -> None:
        """End a node as an operator does; its next process is of the chosen release."""
        process = self._instance.process(name)
        (self._next.add if upgraded else self._next.discard)(process.node)
        self._write()
        os.kill(process.pid, signal.SIGTERM)
        await self._instance.back(name, process.pid)

    def links(self) -> dict[int, int]:
        """How many ends of links use each version of the protocol."""
        found: dict[int, int] = {}
        for name in self._instance.names("router", "broker", "gateway", "proxy"):
            for link in self._instance.status(name)["links"]:
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
    make: Make, figures: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.faults.instance.COMMAND", "tests.next.command")
    monkeypatch.setenv("MUSTERTEST_NEXT", str(tmp_path / "next.json"))
    instance, ledger = make(up=NODES), Ledger(ROOMS, rate=100.0)
    releases, seen = Releases(instance, tmp_path / "next.json"), list[dict[int, int]]()
    with instance.running():
        address = muster.instance.find(instance.folder.path)
        order = ("router", "broker", "gateway", "proxy")
        half, rest = ([instance.names(role)[at] for role in order] for at in (0, 1))
        async with under_load(instance, ledger):
            for names, upgraded in ((half, True), (rest, True), (rest[::-1], False)):
                for name in names:
                    await until(partial(ledger.reached, ledger.mark()), PATIENT_S)
                    await releases.restart(name, upgraded=upgraded)
                await until(lambda: "none" not in json.dumps(instance.status("router")["not_ready"]))
                seen.append(releases.links())
                for at in (0, 1):
                    await old_client(address, at)
            lost = [client.stats()["sessions_lost"] for client in ledger.clients]
    figures(links=seen, lost=lost, **ledger.load())
    nothing_lost(ledger)
    assert set(seen[0]) == {1, 2}, "links between two of the next release use its version, all others the former"
    assert set(seen[1]) == {2}
    assert set(seen[2]) == {1, 2}
