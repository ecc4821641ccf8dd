"""`muster config check | show | docs | unit | manifest`."""

import sys
from pathlib import Path

from rich.table import Table

from muster_server.control.config import load as config
from muster_server.control.config.options import UP
from muster_server.control.terminal import common
from muster_server.control.terminal.words import say
from muster_server.plane.kinds import kind


def check(config_file: Path | None) -> int:
    """Read everything. The first mistake is raised before this prints."""
    loaded = config.load(config_file, profile=UP)
    say(f"ok: {loaded.file or 'no file: all defaults'}")
    return 0


def show(config_file: Path | None, origin: bool, as_json: bool) -> int:
    """Print every key with the value that `muster up` uses."""
    loaded = config.load(config_file, profile=UP)
    rows = list(config.values(loaded.config))
    if as_json:
        if origin:
            common.print_json({name: {"value": value, "origin": loaded.origins[name]} for name, value in rows})
        else:
            common.print_json(dict(rows))
        return 0
    table = Table("key", "value", *(["origin"] if origin else []), box=None, pad_edge=False)
    for name, value in rows:
        if value is not None:
            shown = repr(value) if isinstance(value, str) else str(value)
            table.add_row(name, shown, *([loaded.origins[name]] if origin else []))
    common.out().print(table)
    return 0


def docs() -> int:
    """Print the page `docs/configuration.md`."""
    from muster_server.control.cli.config_docs import markdown

    sys.stdout.write(markdown())
    return 0


def unit(roles: str) -> int:
    """Print the systemd unit of a role, or of several in one process. Raises `UserError`."""
    from muster_server.control.cli import units
    from muster_server.control.cli.serve import parsed

    sys.stdout.write(units.unit(parsed(roles)))
    return 0


def manifest(role: str) -> int:
    """Print the Kubernetes manifest of a role."""
    from muster_server.control.cli import manifests

    sys.stdout.write(manifests.manifest(kind(role)))
    return 0
