"""An edge that speaks TLS: the URL that is told, and a client and the chat behind it."""

import json
from pathlib import Path
from typing import Any

from muster_server.control.host.addresses import address_text
from tests.certificates import certificates
from tests.edge.python_watcher import watching
from tests.edge.served import Served
from tests.faults.instance import Instance, configuration
from tests.waiting import PATIENT_S, until


async def test_a_client_connects_to_the_url_that_status_and_the_registry_tell(tmp_path: Path) -> None:
    certificates(tmp_path)
    edge = {"tls_cert_file": str(tmp_path / "server.pem"), "tls_key_file": str(tmp_path / "server.key")}
    quiet: dict[str, dict[str, Any]] = {
        "database": {"url": "none"},
        "probes": {"every_ms": 0},
        "demo": {"members": 1, "rate": 1},
    }
    instance = Instance(tmp_path, configuration(edge=edge, **quiet))
    with instance.running("--demo", "--with", "edge", "--registry", "embedded"):
        served = Served(instance)
        url = json.loads(instance.ran("status", "--json").stdout)["systems"]["edge"]["url"]
        host, port = served.address
        assert url == f"wss://{host}:{port}/connection/websocket"
        await until(lambda: url in instance.log.read_text(), PATIENT_S)
        admin = address_text(*instance.process("edge").admin)
        by_registry = json.loads(instance.ran("status", "--node", admin, "--json").stdout)
        assert by_registry["systems"]["edge"]["url"] == url
        authority = str(tmp_path / "ca.pem")
        chat = served.chat.replace("http://", "ws://") + "connection/websocket"
        async with (
            watching(url, served.token("7"), "default:demo", authority) as direct,
            watching(chat, served.token("8"), "default:demo") as visitor,
        ):
            await direct.until(lambda: direct.data)
            await visitor.until(lambda: visitor.data)
