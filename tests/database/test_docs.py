"""`docs/databases.md` has every argument, figure, call and error, and its examples run as printed."""

import ast
import asyncio
import gc
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

import muster
from muster.database.maps import ShardMap
from muster.database.replicas import Replicas, SyncReplicas
from muster.database.shards import Move, Moved, Shards
from muster.database.standings import Figures, State
from tests.documents import ROOT, cells, fenced, spans

PAGE: Final = (ROOT / "docs" / "databases.md").read_text()
EXAMPLES: Final = fenced(PAGE, "python")


def named(*head: str) -> set[str]:
    """The first cells of a table, name by name."""
    return {name.strip(" `") for row in cells(PAGE, *head) for name in row[0].split(",")}


@pytest.mark.parametrize("kind", [Replicas, Shards])
def test_every_argument_has_its_row(kind: type[Any]) -> None:
    made = set(inspect.signature(kind).parameters)
    assert named(f"`{kind.__name__}(…)`", "default", "meaning") == made
    assert {"answer_s"} == set(inspect.signature(Replicas).parameters) - set(inspect.signature(SyncReplicas).parameters)


@pytest.mark.parametrize("kind", [Replicas, Shards])
def test_every_default_is_that_of_the_program(kind: type[Any]) -> None:
    for row in cells(PAGE, f"`{kind.__name__}(…)`", "default", "meaning"):
        for name in row[0].split(","):
            default = inspect.signature(kind).parameters[name.strip(" `")].default
            if isinstance(default, float):
                assert float(row[1].split(",")[0]) == default, name


def test_every_figure_and_state_has_its_place() -> None:
    assert named("name", "what") == {field.name for field in fields(Figures)}
    assert {field.name for field in fields(State)} <= spans(PAGE)


def test_every_public_call_is_explained() -> None:
    text = " ".join(spans(PAGE)) + " ".join(EXAMPLES)
    for kind in (Replicas, Shards, Move, ShardMap):
        public = {name for name in vars(kind) if not name.startswith("_")}
        inner = {"owned", "held", "encoded", "decoded", "part", "before", "after"}  # of maps, for the library itself
        assert {name for name in public - inner if name not in text} == set()


def test_every_error_has_its_row_with_code_and_retry() -> None:
    wanted = [
        [f"`{kind.__name__}`", f"`{kind.code}`", "yes" if kind.retry else "no"] for kind in (Moved, muster.Invalid)
    ]
    assert [row[:3] for row in cells(PAGE, "error", "`code`", "`retry`", "when")][:2] == wanted


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the examples end with their program
@pytest.mark.parametrize("example", EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
async def test_an_example_runs_as_printed(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    async with asyncio.timeout(60):
        body = eval(compile(example, "docs/databases.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if body is not None:
            await body
    for engine in [*names.get("engines", {}).values(), names.get("primary"), names.get("at_map")]:
        if engine is not None:
            await engine.dispose()
    gc.collect()
