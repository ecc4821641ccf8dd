"""Ctrl-C ends the run, also in a test whose code swallows it.

`asyncio.Runner` turns the first Ctrl-C into a cancellation of the test. Where another error takes its place, or something
suppresses it, the run would go on with the next test.
"""

import asyncio
from typing import Any, Final

import pytest

_came: Final[list[int]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Note each Ctrl-C that a coroutine test gets."""
    cancel: Any = asyncio.Runner._on_sigint  # type: ignore[attr-defined]

    def noted(runner: asyncio.Runner, number: int, *words: Any, **named: Any) -> None:
        _came.append(number)
        cancel(runner, number, *words, **named)

    asyncio.Runner._on_sigint = noted  # type: ignore[attr-defined]


def pytest_runtest_logfinish(nodeid: str) -> None:
    """After the test, which may have ended as if nothing had been."""
    if _came:
        raise KeyboardInterrupt
