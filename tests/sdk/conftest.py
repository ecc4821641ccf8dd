"""The library's tests run on both loops, each against an instance of its own on that loop."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop

import muster.testing


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, type[asyncio.AbstractEventLoop]]:
    """The loops that a user may run the library on."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.Loop}


@pytest.fixture
async def address() -> AsyncIterator[muster.testing.Instance]:
    """An instance of this test alone."""
    async with muster.testing.instance() as running:
        yield running
