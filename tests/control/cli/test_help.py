"""Every word of the command explains itself, with an example that can be typed."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from rich.text import Text

import bench.cli
from muster_server.control.cli import main as cli
from muster_server.plane import systems

NotUnderstood: Final[Any] = typer.BadParameter.__base__
"""Raised by typer, which does not name it."""


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All words below, with their commands. `muster bench` gives the rest of its line to another program."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(bench_words if (*path, name) == ("muster", "bench") else inner, *path, name)


bench_words: Final[Any] = typer.main.get_command(bench.cli.app)
muster: Final[Any] = typer.main.get_command(cli.app)
EVERY: Final = list(commands(muster, "muster"))


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) for path, _ in EVERY])
def test_a_word_has_an_example_of_itself_that_is_understood(
    path: tuple[str, ...], command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.help, "no help"
    assert command.epilog is not None, "no example"
    example = command.epilog.removeprefix("Example: ")
    assert example != command.epilog
    parts = example.split(" | ")[-1].partition(" > ")[0]
    words = shlex.split(parts)
    assert tuple(words[: len(path)]) == path
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word.endswith(".json"):
            (tmp_path / word).touch()
    understood(muster, words)


def understood(command: Any, words: list[str]) -> None:
    """Parse a line as the command does, without doing anything. Raises the command's errors."""
    name, *rest = words
    with command.make_context(name, rest) as context:
        if not hasattr(command, "commands"):
            return
        left = [*context._protected_args, *context.args]
        inner_name, inner, rest = command.resolve_command(context, left)
        if inner_name == "bench":
            inner = bench_words
        understood(inner, [inner_name, *rest])


def test_the_help_says_what_the_program_is_and_groups_its_words_by_system() -> None:
    assert all(system in muster.help for system in ("rooms", "presence", "likes", "delayed messages", "fleets"))
    groups: dict[str, set[str]] = {}
    for name, word in muster.commands.items():
        groups.setdefault(word.rich_help_panel, set()).add(name)
    titles = {system.title for system in systems.named().values() if system.commands}
    assert groups.keys() == titles | {cli.RUN, cli.USERS, cli.WATCH}
    assert groups["Rooms"] == {"sub", "pub", "command", "members", "trace", "rooms"}
    assert groups["Likes"] == {"like", "unlike", "rank", "likes"}
    assert groups["Watch"] == {"status", "doctor", "check", "repair", "top", "links", "cache", "load"}


@pytest.mark.parametrize("line", ["muster top --sort size", "muster rooms list", "muster bench peers --rounds 0"])
def test_an_example_that_is_not_understood_is_found(line: str) -> None:
    with pytest.raises(NotUnderstood):
        understood(muster, line.split())


def test_no_help_text_loses_what_stands_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    written, shown = typer.main.get_command(cli.app), cli.verbatim(typer.main.get_command(cli.app))
    brackets = 0
    for (path, before), (_, after) in zip(commands(written), commands(shown), strict=True):
        for one, other in zip((before, *before.params), (after, *after.params), strict=True):
            text = getattr(one, "help", None) or ""
            brackets += "[" in text
            assert Text.from_markup(getattr(other, "help", None) or "").plain == text, (path, text)
    assert brackets > 20
    assert cli.main(["presence", "who", "--help"]) == 0
    assert "Ask only this site [any]." in capsys.readouterr().out
