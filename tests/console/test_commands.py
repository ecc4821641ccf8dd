"""The commands that pages name, and those of the console itself."""

import json
import re
from typing import Any

import pytest
import typer.main

from muster_server.control.cli.main import app
from muster_server.systems.console.audit import Audit, Entry
from muster_server.systems.console.http.pages import ASSETS
from muster_server.systems.console.users import matches, user
from tests.control.command import Command

NAMED = re.compile(r"(?:words=\$?\{?[\"`]|[:,] |<code>)(muster [a-z][^\"`$<']*)")


def named() -> set[str]:
    """The commands in all pages, without values of a page."""
    found: set[str] = set()
    for file in ASSETS.rglob("*.js"):
        if "vendor" not in file.parts:
            found |= {each.strip() for each in NAMED.findall(file.read_text())}
    return found


@pytest.mark.parametrize("command", sorted(named()))
def test_each_command_that_a_page_names_exists(command: str) -> None:
    at: Any = typer.main.get_command(app)
    taken = []
    for word in command.split()[1:]:
        known = getattr(at, "commands", {}).get(word)
        if known is None:
            break
        at = known
        taken.append(word)
    assert taken, command
    assert not getattr(at, "commands", None), f"{command} is no whole command"
    options = {option for each in at.params for option in each.opts}
    assert {word for word in command.split() if word.startswith("--")} <= options, command


def test_the_pages_name_many_commands() -> None:
    assert len(named()) > 20


def test_a_users_line_has_the_password_that_was_typed(muster: Command) -> None:
    done = muster("console", "user", "ann", "--role", "operator", stdin="correct horse\n")
    assert done.returncode == 0
    made = user(done.stdout.strip())
    assert (made.name, made.role) == ("ann", "operator")
    assert matches(made, "correct horse")


def test_a_short_password_is_refused(muster: Command) -> None:
    done = muster("console", "user", "ann", stdin="short\n")
    assert done.returncode == 2
    assert "5 characters (expected 8 to 1,024)" in done.stderr


def test_a_login_needs_a_running_console(muster: Command) -> None:
    done = muster("console", "login")
    assert done.returncode == 69
    assert "muster up" in done.stderr


def test_the_audit_log_is_shown_newest_first(muster: Command) -> None:
    place = muster.folder
    place.mkdir(mode=0o700)
    audit = Audit(place, 1 << 20)
    for number in range(3):
        audit.write(Entry(id=f"{number}", at=number, what="begins", user="ann", action=f"POST /{number}"))
        audit.write(Entry(id=f"{number}", at=number, what="ends", user="ann", status=200))
    done = muster("console", "audit", "--json")
    assert done.returncode == 0
    assert [(each["action"], each["status"]) for each in json.loads(done.stdout)] == [
        ("POST /2", 200),
        ("POST /1", 200),
        ("POST /0", 200),
    ]
