"""The system of the HTTP face: one role, a face. Several nodes can serve behind a load balancer."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from muster_server.plane import systems
from muster_server.plane.kind import Around, Pods, RoleKind, System, named, numbers
from muster_server.systems.http.options import RELOADS, HttpOptions

KEYS: Final = "http-keys.json"
"""Name of the file of API keys in the folder of an instance, or of a node."""
MISSING: Final = "the HTTP face needs more libraries; to mend: pip install 'muster-server[http]'"


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of an HTTP face."""

    options: HttpOptions
    keys_file: str
    folder: str
    """Folder of the instance, if there is no registry."""
    systems: dict[str, dict[str, Any]] = {}
    """For each system, the settings of its routes."""


def settle(options: HttpOptions, around: Around) -> HttpSettings:
    """Make the settings from the configuration."""
    keys_file = around.absolute(options.keys_file) or str(around.folder / KEYS)
    told = {each.name: named(each.http_settings)(around) for each in systems.named().values() if each.http_settings}
    return HttpSettings(options=options, keys_file=keys_file, folder=str(around.folder), systems=told)


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why it cannot run; None: nothing is missing."""
    return None if find_spec("litestar") else MISSING


HTTP: Final = RoleKind(
    name="http",
    process="face",
    numbers=numbers(1),
    about="serves rooms and other systems over HTTP",
    options=HttpOptions,
    settings=HttpSettings,
    settle=settle,
    build="muster_server.systems.http.service:build",
    secrets=frozenset({"names", "token", "users"}),
    registers="serving",
    plural="http",
    count_why="a load balancer spreads requests over them",
    ends=5,
    row=60,
    # Rooms with readers take at most 1 GiB, stored answers 64 MiB.
    pods=Pods(port=8080, memory_max="2Gi", files={"http.keys_file": KEYS}),
    reloads={f"http.{name}": f"options.{name}" for name in RELOADS},
    received="muster_http_requests_total",
    carried="muster_http_requests_total",
    check=lacks,
)

SYSTEM: Final = System(
    name="http",
    title="HTTP",
    about="all systems for programs in any language",
    kinds=(HTTP,),
    commands="muster_server.systems.http.cli.words:add",
    stores="muster_server.systems.http.stores:stores",
    check="muster_server.systems.http.check:wrong",
)
