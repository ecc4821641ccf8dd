"""`muster console login | user | audit`."""

import getpass
import sys
import time
from pathlib import Path
from typing import Any, Final

from muster_server.control.cluster import daemon
from muster_server.control.cluster.instance import Record, folder
from muster_server.control.config.load import load
from muster_server.control.config.options import UP, Config
from muster_server.control.errors import UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, found
from muster_server.control.terminal.words import say
from muster_server.plane.kinds import kind
from muster_server.systems.console import logins
from muster_server.systems.console.audit import FILE, Audit
from muster_server.systems.console.options import ConsoleOptions
from muster_server.systems.console.users import line_of

NONE_RUNS: Final = (
    "no console runs on this machine; start one: muster up --with console, or muster serve console. For a node of"
    " muster serve, give its configuration (--config) and its name (--name)"
)


async def login(where: Target, name: str | None, role: Any, as_json: bool) -> int:
    """Print the URL. `name`: that of a node of `muster serve`. Raises `UserError`."""
    config = where.config()
    async with found(where) as nodes:
        record = await nodes.record()
    place, bind = _place(config, record, name)
    options: ConsoleOptions = config.section("console")
    url = logins.link(place, kind("console").url(*bind), role, options.login_s)
    if as_json:
        common.print_json({"url": url, "role": role, "seconds": options.login_s})
    else:
        print(url)
        say(f"muster: good for one login as {role} within {options.login_s} s")
    return 0


def _place(config: Config, record: Record, name: str | None) -> tuple[Path, tuple[str, int]]:
    """The folder and the address of this machine's console. Raises `UserError`.

    A node of `muster serve` has a folder of its own, by its name.
    """
    places = {each.name: folder(config).path for each in record.of("console")}
    if not record.pid:
        names = [name] if name else [daemon.node_name(config, "console", shares) for shares in (False, True)]
        places = {each: daemon.folder(config, each).path for each in names}
    for process in record.of("console"):
        if isinstance(process.bind, tuple) and (place := places.get(process.name)) is not None and place.is_dir():
            return place, process.bind
    raise UserError(NONE_RUNS, UNAVAILABLE)


def user(name: str, role: str) -> int:
    """Print the line. Raises `UserError`."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"Password of {name}: ")
        if getpass.getpass("The same again: ") != password:
            raise UserError("the two passwords differ", USAGE)
    else:
        password = sys.stdin.readline().rstrip("\n")
    try:
        print(line_of(name, role, password))
    except ValueError as error:
        raise UserError(str(error), USAGE) from None
    say("muster: add this line to console.users, and send SIGHUP to the node")
    return 0


def audit(config_file: Path | None, search: str, limit: int, as_json: bool) -> int:
    """Print the actions. Raises `UserError`."""
    from rich.table import Table

    place = folder(load(config_file, profile=UP).config).path
    try:
        found, more = Audit(place, 0).read(search, 0, limit)
    except OSError as error:
        raise UserError(f"{place / FILE}: cannot be read: {error.strerror}") from None
    with common.verdict_after():
        if as_json:
            common.print_json(found)
            return 0
        table = Table("time", "user", "role", "from", "action", "detail", "status", box=None, pad_edge=False)
        for each in found:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each.at))
            status = str(each.status or "")
            table.add_row(at, each.user, each.role, each.address, each.action, each.detail, status)
        common.out().print(table)
        if more:
            say(f"muster: older actions are not shown; raise --limit from {limit}")
    return 0
