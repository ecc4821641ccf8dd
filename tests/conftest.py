"""Every coroutine test runs on uvloop, as the servers do; and what `scripts/test.sh` runs beside is waited for."""

import asyncio
import os
import select
from pathlib import Path

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, type[asyncio.AbstractEventLoop]]:
    """The loop that the servers use."""
    return {"uvloop": uvloop.Loop}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Print what `scripts/rust.sh` said once it has ended, so that pytest's own line is the last."""
    beside = os.environ.get("MUSTERTEST_BESIDE")
    if beside is None or exitstatus == pytest.ExitCode.INTERRUPTED:
        return
    process, _, said = beside.partition(":")
    ended = os.pidfd_open(int(process))
    try:
        select.select([ended], [], [])
    finally:
        os.close(ended)
    terminalreporter.section("scripts/rust.sh")
    terminalreporter.write_line(Path(said).read_text())
    os.truncate(said, 0)
