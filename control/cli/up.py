"""`muster up`: runs everything on this machine until a signal, or for a given time."""

import asyncio
import functools
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from muster.instance import VARIABLE, default_folder
from muster_server.control.cluster.instance import Folder
from muster_server.control.cluster.specs import warn_of_secrets
from muster_server.control.cluster.supervisor import Supervisor
from muster_server.control.config import load as config
from muster_server.control.config.layout import seats
from muster_server.control.config.options import UP
from muster_server.control.host.addresses import address_text
from muster_server.control.host.openfiles import enough_files
from muster_server.control.node import logs
from muster_server.control.terminal.common import verdict_after
from muster_server.control.terminal.words import say
from muster_server.plane.kinds import kind
from muster_server.systems.rooms.system import DEMO_ROOM

if TYPE_CHECKING:  # loaded only with a demo: NumPy is a third of a start
    from muster_server.systems.rooms.cli.demo import DemoRoom, Figures

COLUMNS: Final = ("seconds", "published", "delivered", "repaired", "lost", "p50_ms", "p99_ms")
HEADER_EVERY: Final = 20


async def up(
    config_file: Path | None, flags: Mapping[str, tuple[Any, str]], *, demo: bool, seconds: float | None, as_json: bool
) -> int:
    """Run the instance, with `demo` also the demo room. Exit code 1 if one of its members missed a message."""
    read = functools.partial(config.load, config_file, flags=flags, profile=UP)
    loaded = read()
    settings, watched = loaded.config, sys.stderr.isatty()
    enough_files(len(seats(settings)))
    style = "text" if watched and loaded.origins["log.format"] == config.DEFAULT else settings.log.format
    log = logs.configure(settings.log.level, style, role="supervisor", instance=settings.instance.name)
    warn_of_secrets(settings, log)
    if settings.faults.active():
        say("FAULTS ARE INJECTED ON PURPOSE: see muster config show --origin")
    terminal = has_terminal()
    async with Supervisor(settings, log, logs_to_files=demo or watched) as supervisor:
        reloads(functools.partial(supervisor.reload, read), terminal)
        greet(supervisor, demo or watched)
        if not demo:
            await asyncio.sleep(float("inf") if seconds is None else seconds)
            return 0
        return await run_demo(supervisor, seconds, as_json)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def reloads(reload: Callable[[], None], terminal: bool) -> None:
    """Let SIGHUP reload the configuration, unless it means that the `terminal` is gone."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
        return

    def hung_up() -> None:
        if terminal and not has_terminal():
            signal.raise_signal(signal.SIGTERM)
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


async def run_demo(supervisor: Supervisor, seconds: float | None, as_json: bool) -> int:
    """Publish, and print a line a second, until the time is over or a signal cancels this; then print the summary."""
    from muster_server.systems.rooms.cli.demo import DemoRoom, spoken

    room = DemoRoom(supervisor.config.section("demo"))
    async with room.opened(supervisor.folder), spoken(room, supervisor.folder):
        try:
            async with asyncio.timeout(seconds):
                await show_lines(room, quiet=as_json)
        except (TimeoutError, asyncio.CancelledError) as end:
            figures = await room.finish()
            with verdict_after():
                summary(figures, as_json)
            if isinstance(end, asyncio.CancelledError):
                raise  # a signal is a normal end: exit code 0
            return 0 if figures.whole else 1
    return 0


async def show_lines(room: "DemoRoom", quiet: bool) -> None:
    """One line a second, for ever."""
    count = 0
    while True:
        await asyncio.sleep(1.0)
        if quiet:
            continue
        if count % HEADER_EVERY == 0:
            print("  ".join(f"{column:>10}" for column in COLUMNS))
        count += 1
        print(line(room.figures()), flush=True)


def line(figures: "Figures") -> str:
    """The figures under `COLUMNS`."""
    cells = (getattr(figures, column) for column in COLUMNS)
    return "  ".join(f"{cell:>10.1f}" if isinstance(cell, float) else f"{cell:>10,}" for cell in cells)


def summary(figures: "Figures", as_json: bool) -> None:
    """Print the summary on stdout."""
    if as_json:
        document = {**msgspec.to_builtins(figures), "whole": figures.whole}
        print(msgspec.json.encode(document).decode())
        return
    verdict = "every member got every message" if figures.whole else "MESSAGES ARE MISSING OR DOUBLE"
    print(
        f"{figures.members} members, {figures.published:,} published, {figures.delivered:,} delivered, "
        f"{figures.repaired:,} repaired, {figures.lost:,} lost, {figures.repeated:,} repeated: {verdict}"
    )


def greet(supervisor: Supervisor, to_files: bool) -> None:
    """Print addresses and commands to try on stderr."""
    record = supervisor.record()
    names = {process.node: process.name for process in record.processes}
    width = max(8, *map(len, names.values()))
    for endpoint in record.endpoints:
        say(f"{names[endpoint.node]:{width}} {address_text(endpoint.host, endpoint.port)}")
    for process in record.processes:
        if process.bind:
            say(f"{process.name:{width}} {kind(process.role).scheme}://{address_text(*process.bind)}")
    for program in record.programs or ():
        say(f"{program.name:{width}} {address_text(*program.bind)}")
    for process in record.processes:
        if process.waits:
            say(f"muster: {process.name} does not serve, and is tried again: {process.waits}")
    for process in record.processes:
        say(f"{process.name:{width}} {process.admin_url}/metrics")
    say(f"instance {supervisor.folder.path}" + (f", logs in {supervisor.folder.logs}" if to_files else ""))
    say("try, in other terminals:")
    own = typed_as(supervisor.folder)
    for command in (f"{own} sub {DEMO_ROOM}", f"echo hello | {own} pub {DEMO_ROOM}", f"{own} status"):
        say(f"  {command}")
    say("Ctrl-C ends it")


def typed_as(place: Folder) -> str:
    """The command, as it works in another shell of this user: found there, and for this instance."""
    program = Path(sys.argv[0]).absolute()
    found = shutil.which("muster")
    elsewhere = found is not None and not (
        os.environ.get("VIRTUAL_ENV") and found.startswith(os.environ["VIRTUAL_ENV"])
    )
    word = "muster" if elsewhere or program.name != "muster" else shlex.quote(str(program))
    if place.path == default_folder(os.environ):
        return word
    return f"{VARIABLE}={shlex.quote(str(place.path))} {word}"
