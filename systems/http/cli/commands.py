"""`muster key create | ls | revoke`: API keys of the HTTP face.

Imports little: scripts make keys by the hundred, and `common` and rich cost more than the rest of the command.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from muster_server.control.cluster.instance import Folder, folder
from muster_server.control.config.load import load
from muster_server.control.config.options import UP
from muster_server.control.host.files import absolute
from muster_server.control.terminal.words import say
from muster_server.plane.systems import actions
from muster_server.systems.http import keys, uses
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.system import KEYS


def keys_file(options: HttpOptions, place: Folder) -> Path:
    """The path of the file of keys."""
    return absolute(options.keys_file) if options.keys_file else place.path / KEYS


def file_of(config_file: Path | None, file: Path | None) -> Path:
    """The file of the keys: the given one, else the configured one, else that of the local instance. Raises
    `UserError`."""
    if file is not None:
        return file
    config = load(config_file, profile=UP).config
    return keys_file(config.section("http"), folder(config))


def create(file: Path, name: str, scopes: Sequence[str], as_json: bool) -> int:
    """Print a new key, which is shown this once. Raises `UserError`."""
    key, secret = keys.create(file, name, scopes, {action.name: action.text for action in actions().values()})
    if as_json:
        from muster_server.control.terminal import common

        common.print_json({"id": key.id, "name": key.name, "scopes": key.scopes, "key": secret})
    else:
        print(secret)
        say(f"muster: key {key.id} of {key.name} may {', '.join(key.scopes)}; its secret is not shown again")
    return 0


def ls(file: Path, as_json: bool) -> int:
    """Print all keys, without their secrets. Raises `UserError`."""
    from rich.table import Table

    from muster_server.control.terminal import common

    found, used = keys.read(file).keys, uses.read(file)
    with common.verdict_after():
        if as_json:
            common.print_json(
                [
                    {
                        "id": key.id,
                        "name": key.name,
                        "scopes": key.scopes,
                        "created": key.created,
                        "used": used.get(key.id),
                    }
                    for key in found
                ]
            )
        elif found:
            table = Table("id", "name", "scopes", "created", "last used", box=None, pad_edge=False)
            for key in found:
                last = _moment(used[key.id]) if key.id in used else "never"
                table.add_row(key.id, key.name, " ".join(key.scopes), _moment(key.created), last)
            common.out().print(table)
    return 0


def _moment(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))


def revoke(file: Path, which: str) -> int:
    """Revoke a key, by its name or id; running processes follow within two seconds. Raises `UserError`."""
    key = keys.revoke(file, which)
    say(f"muster: key {key.id} of {key.name} is revoked")
    return 0
