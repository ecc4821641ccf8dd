"""One instance of `muster up --demo --with edge,http` serves all tests of this folder that ask for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.edge.served import Served
from tests.faults.instance import Instance, configuration


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A running instance with an edge."""
    sections: dict[str, dict[str, Any]] = {
        "database": {"url": "none"},
        "probes": {"every_ms": 0},
        "demo": {"members": 1, "rate": 1},
        "proxy": {"command_rate": 1_000, "command_burst": 1_000},
        "edge": {"origins": ["*"], "ping_ms": 1_000, "pong_ms": 500},
        "namespaces__small": {"history_messages": 256},
    }
    path: Path = tmp_path_factory.mktemp("edge")
    instance = Instance(path, configuration(**sections))
    with instance.running("--demo", "--with", "edge,http"):
        yield Served(instance)
