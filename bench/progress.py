"""Progress bars on stderr, if it is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

Step = Callable[[str], None]  # called with the title of the next step
Progress = Callable[[int], AbstractContextManager[Step]]


@contextmanager
def silent(_steps: int) -> Iterator[Step]:
    yield lambda _what: None


@contextmanager
def bar(steps: int) -> Iterator[Step]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=steps)
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            shown.update(task, description=what, advance=1 if begun else 0)
            begun = True

        yield step


def for_terminal(wanted: bool = True) -> Progress:
    return bar if wanted and sys.stderr.isatty() else silent
