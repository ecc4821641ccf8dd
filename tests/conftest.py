"""Every coroutine test runs on uvloop, as the servers do.

No clock judges examples of hypothesis: whatever else runs on the machine may hold one up.
"""

import asyncio
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
