"""Every coroutine test runs on uvloop, as the servers do."""

import asyncio

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, type[asyncio.AbstractEventLoop]]:
    """The loop that the servers use."""
    return {"uvloop": uvloop.Loop}
