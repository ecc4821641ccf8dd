"""Instances and hosts for one test each, and where figures go."""

import json
import os
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from muster_server.control.registry.server import RegistryServer
from tests.faults.hosts import Hosts
from tests.faults.instance import Instance, configuration

Make = Callable[..., Instance]
LOGS_MAX: Final = 20
LINES_MAX: Final = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the output of each process of a failed test."""
    report = yield
    path = item.funcargs.get("tmp_path")
    if report.failed and isinstance(path, Path):
        for log in sorted(path.rglob("*.log"))[:LOGS_MAX]:
            lines = log.read_text(errors="replace").splitlines()[-LINES_MAX:]
            report.sections.append((str(log.relative_to(path)), "\n".join(lines)))
    return report


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make an instance with this configuration, by section; `running()` starts it.

    Without a database unless one is named: its library adds a second to each start. And without probes, whose rooms,
    members and messages would be counted too.
    """

    def made(**sections: dict[str, Any]) -> Instance:
        without: dict[str, dict[str, Any]] = {"database": {"url": "none"}, "probes": {"every_ms": 0}}
        return Instance(tmp_path, configuration(**without | sections))

    return made


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    """With the embedded registry, in this process."""
    made = Hosts(tmp_path, "embedded")
    async with RegistryServer(tmp_path, structlog.get_logger()):
        with made.running():
            yield made


@pytest.fixture
def figures(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Keep figures with the test's result, and add them to the file that `MUSTERTEST_FIGURES` names."""

    def keep(**values: object) -> None:
        for name, value in values.items():
            record_property(name, value)
        line = json.dumps({"test": request.node.name, **values}, default=str)
        print(line)
        if file := os.environ.get("MUSTERTEST_FIGURES"):
            with Path(file).open("a") as stream:
                stream.write(line + "\n")

    return keep
