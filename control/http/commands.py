"""`muster key create | ls | revoke`: the API keys of the HTTP face."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from control.commands import common
from control.commands.words import say
from control.files import absolute
from control.http import keys
from control.http.options import HttpOptions
from control.http.system import actions
from control.instance import Folder

FILE: Final = "http-keys.json"


def keys_file(options: HttpOptions, place: Folder) -> Path:
    """Where the keys are."""
    return absolute(options.keys_file) if options.keys_file else place.path / FILE


def create(file: Path, name: str, scopes: Sequence[str], as_json: bool) -> int:
    """Print a new key, which is shown this once. Raises `UserError`."""
    key, secret = keys.create(file, name, scopes, {action.name: action.text for action in actions().values()})
    if as_json:
        common.print_json({"id": key.id, "name": key.name, "scopes": key.scopes, "key": secret})
    else:
        print(secret)
        say(f"muster: key {key.id} of {key.name} may {', '.join(key.scopes)}; it is not shown again")
    return 0


def ls(file: Path, as_json: bool) -> int:
    """Print all keys, without their secrets. Raises `UserError`."""
    found = keys.read(file).keys
    with common.verdict_after():
        if as_json:
            common.print_json(
                [{"id": key.id, "name": key.name, "scopes": key.scopes, "created": key.created} for key in found]
            )
        elif found:
            table = Table("id", "name", "scopes", "created", box=None, pad_edge=False)
            for key in found:
                created = time.strftime("%Y-%m-%d %H:%M", time.gmtime(key.created))
                table.add_row(key.id, key.name, " ".join(key.scopes), created)
            common.out().print(table)
    return 0


def revoke(file: Path, which: str) -> int:
    """End a key, by its name or id; running processes follow within two seconds. Raises `UserError`."""
    key = keys.revoke(file, which)
    say(f"muster: key {key.id} of {key.name} is revoked")
    return 0
