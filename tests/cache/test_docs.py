"""`docs/cache.md` has every argument, figure, word and error, and its examples run as printed."""

import argparse
import ast
import asyncio
import inspect
import itertools
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

import muster.cache
import muster.testing
from muster.cache.__main__ import _parser
from muster.cache.figures import Figures
from tests.documents import ROOT, cells, fenced, spans
from tests.redis_server import RedisServer
from tests.sdk.record import record

PAGE: Final = (ROOT / "docs" / "cache.md").read_text()
EXAMPLES: Final = fenced(PAGE, "python")
REDIS: Final = "redis://127.0.0.1:6379/0"


def named(*head: str) -> set[str]:
    """The first cells of a table, name by name."""
    return {name.strip(" `") for row in cells(PAGE, *head) for name in row[0].split(",")}


def test_every_argument_has_its_row() -> None:
    made = set(inspect.signature(muster.cache.Cache).parameters)
    assert named("`Cache(…)`", "default", "meaning") == made
    cached = set(inspect.signature(muster.cache.Cache.cached).parameters) - {"self"}
    assert named("`cache.cached(…)`", "default", "meaning") == cached


def test_every_figure_has_its_row() -> None:
    assert named("name", "what") == {field.name for field in fields(Figures)}


def test_every_public_name_is_explained() -> None:
    text = " ".join(spans(PAGE)) + " ".join(EXAMPLES)
    explained = {"Cached", "Changing"}  # what `cached` and `changing` give
    assert {name for name in muster.cache.__all__ if name not in text} == explained
    for kind in (muster.cache.Cache, muster.cache.Cached, muster.cache.Changing):
        public = {name for name in vars(kind) if not name.startswith("_")}
        assert {name for name in public if name not in text} == set()


def test_every_error_has_its_row_with_code_and_retry() -> None:
    kinds = (muster.Unavailable, muster.cache.MarkLapsed, muster.Invalid)
    wanted = [[f"`{kind.__name__}`", f"`{kind.code}`", "yes" if kind.retry else "no"] for kind in kinds]
    assert [row[:3] for row in cells(PAGE, "error", "`code`", "`retry`", "when")] == wanted


def test_every_word_and_option_of_the_command_is_explained() -> None:
    (words,) = (each for each in _parser("x")._actions if isinstance(each, argparse._SubParsersAction))
    text = " ".join(spans(PAGE))
    for name, word in words.choices.items():
        assert name in text
        options = {option for action in word._actions for option in action.option_strings} - {"-h", "--help"}
        assert {option for option in options if option not in text} == set()


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
async def test_an_example_runs_as_printed(
    example: str, redis_of_the_run: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with muster.testing.instance() as address:
        record(tmp_path, address)
        monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path))
        here = example.replace(REDIS, redis_of_the_run.url)
        async with asyncio.timeout(60):
            names: dict[str, Any] = {"__name__": "example"}
            body = eval(compile(here, "docs/cache.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if body is not None:
                await body


def test_examples_connect_to_one_address() -> None:
    found = list(itertools.chain.from_iterable(example.split('Cache("')[1:] for example in EXAMPLES))
    assert found
    assert all(each.startswith(REDIS) for each in found)
