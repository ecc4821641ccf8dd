"""`docs/sdk.md` has every name, argument, code, reason and count, and its examples run as printed."""

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import muster
import muster.testing
from tests.documents import ROOT, cells, fenced, spans
from tests.sdk.record import record
from tests.waiting import PATIENT_S

PAGE: Final = (ROOT / "docs" / "sdk.md").read_text()
ERRORS: Final = (ROOT / "docs" / "errors.md").read_text()
SPANS: Final = spans(PAGE)
EXAMPLES: Final = fenced(PAGE, "python")


def words(text: str) -> set[str]:
    """All names in code spans, also within longer spans."""
    return {word for span in spans(text) for word in re.findall(r"\w+", span)}


@pytest.mark.parametrize("module", [muster, muster.testing, muster.sync])
def test_every_public_name_is_explained(module: Any) -> None:
    assert set(module.__all__) - SPANS == set()


@pytest.mark.parametrize(
    "kind",
    [
        muster.Client,
        muster.Room,
        muster.Position,
        muster.Message,
        muster.Gap,
        muster.testing.Instance,
        muster.sync.Client,
        muster.sync.Room,
    ],
)
def test_every_method_that_a_program_calls_is_explained(kind: type) -> None:
    inner = {
        muster.Client: {"abandon", "check_here", "enter", "late_join", "leave", "wait"}
        | {"check_publishes", "check_side", "end_side", "note_down", "publishes", "too_late", "use_token"},
        muster.Room: {"before", "end", "on_error", "on_error_over", "on_joined", "on_readable"},
        muster.Gap: {"count", "index"},
    }
    public = {name for name in vars(kind) if not name.startswith("_")} - inner.get(kind, set())
    assert public - words(PAGE) == set()


@pytest.mark.parametrize("call", [muster.connect, muster.Client.join, muster.testing.instance])
def test_every_argument_is_explained(call: Callable[..., object]) -> None:
    assert set(inspect.signature(call).parameters) - {"self"} - words(PAGE) == set()


def test_every_error_has_its_row_with_code_and_retry() -> None:
    rows = {row[0]: row[1:3] for row in cells(PAGE, "error", "`code`", "`retry`", "when")}
    kinds: list[type[muster.MusterError]] = [
        kind
        for name in muster.__all__
        if isinstance(kind := getattr(muster, name), type) and issubclass(kind, muster.MusterError)
    ]
    answers = {True: "yes", False: "no"}
    wanted = {
        f"`{kind.__name__}`": ["as below" if kind is muster.Refused else f"`{kind.code}`", answers[kind.retry]]
        for kind in kinds
    }
    assert rows == wanted


def test_every_code_of_a_server_is_explained() -> None:
    codes = {row[1].strip("`"): row[2] for row in cells(ERRORS, "number", "name", "retry", "what to do")}
    raised = {code for row in cells(PAGE, "`Refused.code`", "what to do") for code in spans(row[0])}
    assert raised == {code for code, retry in codes.items() if retry == "no"} | {"busy", "rate_limited"}
    assert {code for code, retry in codes.items() if retry == "yes"} - SPANS == set()
    assert set(muster.Refused.WORDS) - raised == set()


async def test_every_count_is_explained_and_no_other(address: muster.testing.Instance) -> None:
    rows = {row[0].strip("`"): row[1] for row in cells(PAGE, "name", "of", "what")}
    async with muster.connect(address) as client, client.join("r") as room:
        assert set(client.stats()) == set(rows)
        assert set(room.stats()) == {name for name, of in rows.items() if of == "room"}
        room.leave()
        assert set(room.stats()) == {name for name, of in rows.items() if of == "room"}


def test_every_reason_of_a_gap_is_explained() -> None:
    listed = spans(ERRORS.split("Reasons of gaps:")[1].split("\n\n")[0])
    assert {row[0].strip("`") for row in cells(PAGE, "reason", "why")} == listed


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
async def test_an_example_runs_as_printed(
    example: str, address: muster.testing.Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, address)
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path))
    async with asyncio.timeout(PATIENT_S):
        if ".run(" in example or "muster.sync" in example:  # it blocks, or has a loop of its own
            program = await asyncio.create_subprocess_exec(sys.executable, "-c", example, stderr=subprocess.PIPE)
            _, said = await program.communicate()
            assert program.returncode == 0, said.decode()
            return
        names: dict[str, Any] = {}
        body = eval(compile(example, "docs/sdk.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if body is not None:
            await body
        for name, test in names.items():
            if name.startswith("test_"):
                await test()
