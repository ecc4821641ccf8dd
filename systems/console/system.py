"""The system of the console: one role, a face with the routes of all systems behind a login."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from muster_server.plane.kind import Action, Around, Pods, RoleKind, System, numbers
from muster_server.systems.console.options import RELOADS, ConsoleOptions
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.system import HttpSettings
from muster_server.systems.http.system import settle as settled

MISSING: Final = "the console needs more libraries; to mend: pip install 'muster-server[http]'"


class ConsoleSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a console."""

    options: ConsoleOptions
    http: HttpSettings
    """The settings of the routes of all systems."""
    links: dict[str, Any]
    """The limits that mark a link as bad."""


def settle(options: ConsoleOptions, around: Around) -> ConsoleSettings:
    """Make the settings from the configuration."""
    http: HttpOptions = around.section("http")
    return ConsoleSettings(
        options=options, http=settled(http, around), links=msgspec.to_builtins(around.section("links"))
    )


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why it cannot run; None: nothing is missing."""
    return None if find_spec("litestar") else MISSING


def welcome(folder: Path, url: str) -> str:
    """The URL that `muster up` prints: it logs in once."""
    from muster_server.systems.console.logins import link

    return link(folder, url)


CONSOLE: Final = RoleKind(
    name="console",
    process="face",
    numbers=numbers(42),
    about="serves web pages on which operators see all systems and act on them",
    options=ConsoleOptions,
    settings=ConsoleSettings,
    settle=settle,
    build="muster_server.systems.console.service:build",
    welcome="muster_server.systems.console.system:welcome",
    secrets=frozenset({"names", "token", "users"}),
    registers="serving",
    ends=4,
    row=61,
    pods=Pods(port=8081, replicas=1, memory_max="1Gi"),
    reloads={f"console.{name}": f"options.{name}" for name in RELOADS},
    received="muster_http_requests_total",
    carried="muster_http_requests_total",
    check=lacks,
)

SYSTEM: Final = System(
    name="console",
    title="Console",
    about="web pages of all systems for operators",
    kinds=(CONSOLE,),
    shown=True,
    commands="muster_server.systems.console.cli.words:add",
    check="muster_server.systems.console.check:wrong",
    actions=(Action("console", "log in to the console: `console:viewer`, or `console:operator`"),),
)
