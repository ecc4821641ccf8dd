"""An event loop whose time is virtual: it passes only while nothing is left to do, so hours take milliseconds and a seed
plays the same way each time."""

import asyncio
import concurrent.futures
import selectors
from collections.abc import Callable
from typing import Any


class Stuck(Exception):
    """Nothing will ever happen any more."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at time 0."""

    def __init__(self) -> None:
        super().__init__(_Selector(self._pass))
        self._passed = 0.0
        self.set_default_executor(_Here())

    def time(self) -> float:
        return self._passed

    def _pass(self, seconds: float) -> None:
        self._passed += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, passed: Callable[[float], None]) -> None:
        super().__init__()
        self._let_pass = passed

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events and timeout != 0:
            if timeout is None:
                raise Stuck
            self._let_pass(max(timeout, 0.0))
        return events


class _Here(concurrent.futures.ThreadPoolExecutor):
    """Does the work of a thread at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done
