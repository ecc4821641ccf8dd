"""The kinds that an agent measures: those built in, those of installed packages, and those of a program's own."""

import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from ..errors import Invalid
from . import dns, http, ping
from .reach import Reach

ENTRY_POINTS: Final = "muster.agent.kinds"
"""The group of entry points by which installed packages add kinds."""
NAME_MAX: Final = 64
Kind = Callable[[str, dict[str, Any], Reach], Awaitable[Any]]
"""Measures `(target, options, reach)`, and returns any JSON. It asks `reach` for every address that it contacts. An
exception becomes a failure; `muster.fleet.Failed` has a value beside its text."""

BUILT_IN: Final[Mapping[str, Kind]] = {"ping": ping.ping, "tcp": ping.tcp, "dns": dns.ask, "http": http.http}


def named_kinds(names: Iterable[str] = (), own: Iterable[str] = ()) -> dict[str, Kind]:
    """The kinds of these names [all built in and installed], and those of `own`, each `NAME=MODULE:FUNCTION`. Raises
    `Invalid`."""
    installed = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    wanted = list(dict.fromkeys(names)) or [*BUILT_IN, *installed]
    made: dict[str, Kind] = {}
    for name in wanted:
        if name in BUILT_IN:
            made[name] = BUILT_IN[name]
        elif name in installed:
            made[name] = _loaded(name, installed[name].value)
        else:
            known = ", ".join([*BUILT_IN, *sorted(installed)])
            raise Invalid(
                f"unknown kind {name!r:.80} (known: {known}; for one of your own: --kind NAME=MODULE:FUNCTION)"
            )
    for text in own:
        name, equals, place = text.partition("=")
        if not (equals and 0 < len(name) <= NAME_MAX and name.isprintable()):
            raise Invalid(
                f"invalid kind {text!r:.80} (expected NAME=MODULE:FUNCTION, for example lookup=site.checks:lookup)"
            )
        made[name] = _loaded(name, place)
    return made


def _loaded(name: str, place: str) -> Kind:
    """The function of `MODULE:FUNCTION`, from the present folder or an installed package. Raises `Invalid`."""
    module, colon, function = place.partition(":")
    if not (module and colon and function):
        raise Invalid(
            f"kind {name}: invalid function {place!r:.80} (expected MODULE:FUNCTION, for example site.checks:lookup)"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        there = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise Invalid(f"kind {name}: no module {module!r:.80} here") from None
    if not callable(there):
        raise Invalid(f"kind {name}: {place!r:.80} is not a function")
    made: Kind = there
    return made
