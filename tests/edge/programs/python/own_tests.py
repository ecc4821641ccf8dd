"""Runs the own tests of centrifuge-python for `scripts/sdks.sh`: `own_tests.py FOLDER`. Each part of one has a minute.

Some of them wait for an event without a limit, and one that does not come would hold up all others.
"""

import asyncio
import functools
import inspect
import sys
import unittest
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

PATIENT_S: Final = 60.0


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """All tests of a suite."""
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from tests_of(each)
        else:
            yield each


def bounded(method: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """The same test, each of whose parts fails after a minute."""

    @functools.wraps(method)
    async def run() -> Any:
        task = asyncio.ensure_future(method())
        while not (await asyncio.wait({task}, timeout=PATIENT_S))[0]:
            task.cancel()  # a part of a test takes it for its own end, and the next part begins
        return task.result()

    return run


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.discover(sys.argv[1])
    for test in tests_of(suite):
        name = test.id().rpartition(".")[2]
        if inspect.iscoroutinefunction(getattr(test, name)):
            setattr(test, name, bounded(getattr(test, name)))
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
