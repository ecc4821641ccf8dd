"""`muster fleet run KIND`: asks clients at once, and shows their results."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from muster_server.control.errors import FAILURE, USAGE, UserError
from muster_server.control.terminal.common import counted, print_json, verdict_after
from muster_server.control.terminal.words import say, tell
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.questions import Event, RunNow

NAMES_MAX: Final = 10


def options(said: Sequence[str]) -> dict[str, Any]:
    """Parse options `NAME=VALUE`; a value is JSON, or else text. Raises `UserError`."""
    found: dict[str, Any] = {}
    for each in said:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise UserError(f"--option: invalid value {each!r} (expected NAME=VALUE)", USAGE)
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


async def run(
    asking: Asking,
    kind: str,
    target: str,
    where: str,
    pick: int,
    said: dict[str, Any],
    *,
    wait: bool,
    as_json: bool,
) -> int:
    """Returns 0 if all requested results came. In JSON each event is a line."""
    question = RunNow(kind, target, where, pick, said, wait)
    began, last = time.monotonic(), Event("ended", "")
    draws: list[list[str]] = []
    with verdict_after(), progress(pick) as step:
        async for event in asking.follow(question, Event):
            last = event
            if event.what == "asked":
                draws.append(event.clients)
            if as_json:
                print_json(document(event), line=True)
            elif not wait:
                tell(event.run)
            elif event.what == "result":
                answer = event.value.decode() if event.ok else f"failed: {event.error}"
                tell(f"{event.client}  {answer}")
            step(event)
    if not wait:
        return 0
    if not as_json:
        _summary(last, draws[1:], time.monotonic() - began)
    return 0 if len(last.done) >= pick else FAILURE


def document(event: Event) -> dict[str, Any]:
    """An event in JSON form."""
    said: dict[str, Any] = msgspec.to_builtins(event)
    if event.what == "result":
        said["value"] = msgspec.Raw(event.value)
    return said


def _summary(last: Event, instead: Sequence[list[str]], seconds: float) -> None:
    if last.error:
        say(f"muster: {last.run}: no client was asked: {last.error}")
        return
    asked = counted(len(last.done) + len(last.replaced) + len(last.missed), "client")
    say(f"{last.run}: {len(last.done)} of {last.wanted} results from {asked} in {seconds:.1f} s")
    if last.replaced:
        say(f"silent: {_names(last.replaced)}; asked instead: {_names([each for draw in instead for each in draw])}")
    if last.missed:
        say(f"no result: {_names(last.missed)}")


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return f"{', '.join(names[:NAMES_MAX])}{more}"


@contextlib.contextmanager
def progress(wanted: int) -> Iterator[Callable[[Event], None]]:
    """Show a bar on stderr, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda event: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("results"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("results", total=wanted)
        yield lambda event: bar.advance(task) if event.what == "result" else None
