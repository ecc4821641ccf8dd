"""Every coroutine test runs on uvloop, as the servers do; and what `scripts/test.sh` runs beside them is waited for.

No clock judges examples of hypothesis: whatever else runs on the machine may hold one up.
"""

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

import pytest
import uvloop
from hypothesis import HealthCheck, settings

BENCH: Final = Path(__file__).parent / "bench"

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, type[asyncio.AbstractEventLoop]]:
    """The loop that the servers use."""
    return {"uvloop": uvloop.Loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What measures comes last: nothing runs beside it any more."""
    items.sort(key=lambda item: BENCH in item.path.parents)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Print what `scripts/rust.sh` said once all of it has ended, so that pytest's own line is the last."""
    said = os.environ.get("MUSTERTEST_BESIDE")
    if said is None or exitstatus == pytest.ExitCode.INTERRUPTED:
        return
    with open(said) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # whoever still writes holds it
        terminalreporter.section("scripts/rust.sh")
        terminalreporter.write_line(file.read())
    os.truncate(said, 0)
