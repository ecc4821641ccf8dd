"""A folder that the release before left behind starts unchanged: numbers, epochs, keys, tokens, registry, memberships."""

import base64
import json
from pathlib import Path
from typing import Any, Final

import muster
from muster_server import _engines
from tests.documents import ROOT
from tests.faults.conftest import Make
from tests.waiting import until

LEFT: Final[dict[str, Any]] = json.loads((ROOT / "tests" / "vectors" / "instance.json").read_text())
FILES: Final = {name: base64.b64decode(content) for name, content in LEFT["files"].items()}
NUMBERS: Final = {"router": 1, "router-1": 5, "broker": 2, "broker-1": 6, "gateway": 3, "gateway-1": 7, "proxy": 4}
"""The nodes that the release before ran there: two gateways, and two partitions of routers and of brokers."""


def laid_out(folder: Path) -> None:
    """The files as that release left them."""
    for name, content in FILES.items():
        file = folder / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(0o600)
    folder.chmod(0o700)


async def test_an_instance_of_the_release_before_starts_with_its_numbers_keys_and_layers(make: Make) -> None:
    counts = {"gateways": 2, "brokers": "1", "routers": "1"}  # its registry knows better
    instance = make(up=counts, database={"url": "sqlite"}, probes={"every_ms": 1_000})
    laid_out(instance.folder.path)
    with instance.running():
        nodes = {process.name: process for process in instance.record().processes if process.role != "prober"}
        assert {name: process.node for name, process in nodes.items()} == NUMBERS
        for name, process in nodes.items():
            before = int(FILES[f"epochs/node-{process.node}"])
            assert process.epoch > before, f"{name}: an epoch is greater than any before (I-1)"
        ends = {end.node: end.public_key for end in (*instance.record().gateways, *instance.record().proxies)}
        for name in ("gateway", "gateway-1", "proxy"):
            private = bytes.fromhex(FILES[f"{name}.key"].decode().strip())
            assert ends[NUMBERS[name]] == bytes(_engines.public_key(private)).hex()
        assert instance.status("router")["registry"]["partitions"].keys() >= {"router", "broker/main"}
        await until(lambda: instance.status("router")["database"]["warm_start"].startswith("warm start with"))
        found = muster.instance.find(instance.folder.path)
        assert found.token == FILES["token"].strip()
        async with muster.connect(str(instance.folder.path)) as client, client.join("demo") as room:
            await client.publish("demo", b"still here")
            async for message in room:
                assert isinstance(message, muster.Message)
                assert message.data == b"still here"
                break
