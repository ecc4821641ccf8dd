"""Tests end by events, and by one limit that no machine reaches: `PATIENT_S` of `tests/waiting.py`."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.documents import ROOT

LEAST_S: Final = 60.0
"""A busy machine at a fifth of its speed may need as long for anything."""
WAITS: Final = {
    "asyncio.timeout": 0,
    "asyncio.wait_for": 1,
    "eventually": 1,
    "until": 1,
    "until_asked": 1,
}
"""The place of the limit among their words."""
ENDS: Final = (
    *("communicate", "wait", "run", "check_output", "result"),
    *("HTTPConnection", "AsyncClient", "urlopen", "get_message"),
)
"""Calls that are given a `timeout=`."""
TESTED: Final = {
    "tests/faults/test_stop.py": "interest agrees within 3 s after a standstill",
    "tests/control/cluster/test_planted.py": "waits that a planted hole makes vain are short",
    "tests/messages/world.py": "virtual time",
}
"""Files in which a short limit is what is tested."""


def name(called: ast.expr) -> str:
    """`asyncio.timeout`; without the object of a method."""
    if isinstance(called, ast.Attribute):
        owner = f"{called.value.id}." if isinstance(called.value, ast.Name) else ""
        return owner + called.attr
    return called.id if isinstance(called, ast.Name) else ""


def limits(text: str) -> Iterator[tuple[int, float]]:
    """The line and seconds of each limit that is a number, unless a time-out is expected."""

    def walk(node: ast.AST, expected: bool) -> Iterator[tuple[int, float]]:
        if isinstance(node, ast.With | ast.AsyncWith):
            said = " ".join(ast.unparse(item.context_expr) for item in node.items)
            expected |= bool(re.search(r"raises\(.*(Time|kind)", said)) or "suppress" in said
        if isinstance(node, ast.Try):
            expected |= any("Timeout" in ast.unparse(each.type) for each in node.handlers if each.type)
        if isinstance(node, ast.Call) and not expected:
            called = name(node.func)
            given = [*node.args[WAITS[called] : WAITS[called] + 1]] if called in WAITS else []
            ends = called.rpartition(".")[2] in ENDS and called != "asyncio.wait"  # whose end by time is no error
            if called in WAITS or ends:
                given += [word.value for word in node.keywords if word.arg in {"timeout", "seconds"}]
            for each in given:
                if isinstance(each, ast.Constant) and isinstance(each.value, int | float):
                    yield each.lineno, each.value
        for child in ast.iter_child_nodes(node):
            yield from walk(child, expected)

    yield from walk(ast.parse(text), expected=False)


def test_a_limit_that_a_busy_machine_may_reach_is_found() -> None:
    text = """
await until(ready, 5)
async with asyncio.timeout(30):
    process.communicate(timeout=20)
await until(ready)
with pytest.raises(TimeoutError):
    async with asyncio.timeout(0.1):
        await room.next()
with pytest.raises(muster.Refused):
    async with asyncio.timeout(9):
        await room.next()
"""
    assert list(limits(text)) == [(2, 5), (3, 30), (4, 20), (10, 9)]


def test_no_test_waits_by_a_limit_that_a_busy_machine_may_reach() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {seconds} s"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        if str(file.relative_to(ROOT)) not in TESTED
        for line, seconds in limits(file.read_text())
        if seconds < LEAST_S
    ]
    assert not found, "use PATIENT_S of tests/waiting.py, or say in TESTED what is tested"
