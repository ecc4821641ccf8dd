"""`muster up`: runs everything on this machine until a signal, or for a given time."""

import asyncio
import contextlib
import functools
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from muster.instance import VARIABLE, default_folder
from muster_server.control.cli import tour as tours
from muster_server.control.cluster.instance import Folder
from muster_server.control.cluster.specs import warn_of_secrets
from muster_server.control.cluster.supervisor import Supervisor
from muster_server.control.config import load as config
from muster_server.control.config.layout import seats
from muster_server.control.config.options import UP, Config
from muster_server.control.host.addresses import address_text
from muster_server.control.host.openfiles import enough_files
from muster_server.control.node import logs
from muster_server.control.terminal.words import say
from muster_server.plane import systems
from muster_server.plane.kind import named
from muster_server.plane.kinds import kind


async def up(
    config_file: Path | None,
    flags: Mapping[str, tuple[Any, str]],
    *,
    demo: bool,
    tour: bool,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Run the instance; with `demo` also the systems' demo, whose exit code is returned, and their pages; with
    `tour` their tours."""
    if demo:
        flags = with_shown(config.load(config_file, flags=flags, profile=UP).config, flags)
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
    supervisor = Supervisor(settings, log, logs_to_files=demo or watched)
    reloads(functools.partial(supervisor.reload, read), terminal)
    async with supervisor:
        greet(supervisor, demo or watched)
        shown = next((system.demo for system in systems.named().values() if system.demo), "") if demo else ""
        if not shown:
            await asyncio.sleep(float("inf") if seconds is None else seconds)
            return 0
        async with (
            pages(settings, supervisor.folder),
            beside(tours.shown(running(settings), supervisor.folder.path), unless=as_json or not tour),
        ):
            code: int = await named(shown)(settings, supervisor.folder, seconds, as_json)
            return code


def with_shown(settings: Config, flags: Mapping[str, tuple[Any, str]]) -> Mapping[str, tuple[Any, str]]:
    """The flags with the further systems that a demo shows, unless their libraries are missing."""
    shown = [each for each in systems.named().values() if each.shown and not settings.runs(each.name)]
    names = [each.name for each in shown if all(of.check(settings.section) is None for of in each.kinds)]
    if not names:
        return flags
    enabled = ",".join(filter(None, [settings.systems.enabled, *names]))
    return {**flags, "systems.enabled": (enabled, "--demo")}


def running(settings: Config) -> list[str]:
    """The systems that this instance runs."""
    return [name for name in systems.named() if settings.runs(name)]


@contextlib.asynccontextmanager
async def pages(settings: Config, folder: Folder) -> AsyncIterator[None]:
    """Serve the systems' pages for people during the block, and print their URLs."""
    async with contextlib.AsyncExitStack() as stack:
        for system in systems.named().values():
            if system.page and settings.runs(system.name):
                url: str = await stack.enter_async_context(named(system.page)(settings, folder))
                say(f"open {url} in a browser")
        yield


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None], *, unless: bool) -> AsyncIterator[None]:
    """Run a task during the block, and cancel it at the end."""
    if unless:
        work.close()
        yield
        return
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def reloads(reload: Callable[[], None], terminal: bool) -> None:
    """Let SIGHUP reload the configuration, unless it reports that the `terminal` was closed."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # started with nohup
        return

    def hung_up() -> None:
        if terminal and not has_terminal():
            signal.raise_signal(signal.SIGTERM)
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


def greet(supervisor: Supervisor, to_files: bool) -> None:
    """Print addresses and commands to try on stderr."""
    record = supervisor.record()
    names = {process.node: process.name for process in record.processes}
    width = max(8, *map(len, names.values()))
    for endpoint in record.endpoints:
        say(f"{names[endpoint.node]:{width}} {address_text(endpoint.host, endpoint.port)}")
    for process in record.processes:
        if process.bind:
            of = kind(process.role)
            url = of.url(*process.bind, process.secure)
            if of.welcome:
                url = named(of.welcome)(supervisor.folder.path, url)
            say(f"{process.name:{width}} {url}")
    for program in record.programs or ():
        say(f"{program.name:{width}} {address_text(*program.bind)}")
    for process in record.processes:
        if process.waits:
            say(f"muster: {process.name} does not serve and is retried: {process.waits}")
    for process in record.processes:
        say(f"{process.name:{width}} {process.admin_url}/metrics")
    say(f"instance {supervisor.folder.path}" + (f", logs in {supervisor.folder.logs}" if to_files else ""))
    say("try, in other terminals:")
    own = typed_as(supervisor.folder)
    suggested = [each for system in systems.named().values() for each in system.tries]
    for command in (*suggested, "{muster} status"):
        say(f"  {command.format(muster=own)}")
    say("Ctrl-C stops it")


def typed_as(place: Folder) -> str:
    """The command line that works in another shell of this user for this instance."""
    program = Path(sys.argv[0]).absolute()
    found = shutil.which("muster")
    elsewhere = found is not None and not (
        os.environ.get("VIRTUAL_ENV") and found.startswith(os.environ["VIRTUAL_ENV"])
    )
    word = "muster" if elsewhere or program.name != "muster" else shlex.quote(str(program))
    if place.path == default_folder(os.environ):
        return word
    return f"{VARIABLE}={shlex.quote(str(place.path))} {word}"
