"""`muster fleet cert issue | revoke | ls`: certificates of clients for the local mosquitto."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from muster_server.control.config import load as config
from muster_server.control.errors import USAGE, UserError
from muster_server.control.host.addresses import address_text
from muster_server.control.terminal.common import counted, out, print_json, verdict_after
from muster_server.control.terminal.words import say
from muster_server.plane.files import write_atomically
from muster_server.systems.fleet.authority import CA_CERT, Authority, AuthorityError, Record
from muster_server.systems.fleet.broker import AUTHORITY, ban, tls
from muster_server.systems.fleet.cli.agents import local
from muster_server.systems.fleet.expel import expel

NAMES_SHOWN: Final = 10
STATES: Final = {False: "valid", True: "revoked"}


def issue(
    config_file: Path | None, names: Sequence[str], days: int, folder: Path, request: Path | None, as_json: bool
) -> int:
    """Write certificate and key of each client, and the authority's certificate, into a folder."""
    program, pid, authority = _authority(config_file)
    secure = tls(config.load(config_file).config.section)
    if request is not None and len(names) != 1:
        raise UserError("--csr needs exactly one client", USAGE)
    try:
        asked = request.read_bytes() if request is not None else b""
        folder.mkdir(parents=True, exist_ok=True)
        made = []
        for name in names:
            issued = authority.issue(name, days, asked)
            made.append(issued.record)
            write_atomically(folder / f"{name}.pem", issued.certificate.encode(), 0o644)
            if issued.key:
                write_atomically(folder / f"{name}.key", issued.key.encode())
        write_atomically(folder / CA_CERT, (authority.folder / CA_CERT).read_bytes(), 0o644)
    except AuthorityError as error:
        raise UserError(str(error), USAGE) from None
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    _told(program, pid)
    url = f"mqtts://{address_text(secure.host, secure.port)}" if secure is not None else ""
    if as_json:
        print_json({"url": url, "folder": str(folder), "certificates": made})
    else:
        if url:
            say(f"they connect to {url}")
        for each in made:
            print(f"{each.client} {folder / each.client}.pem until {_day(each.until_ms)}")
    return 0


def revoke(config_file: Path | None, which: Sequence[str], as_json: bool) -> int:
    """Revoke certificates; the broker refuses them at once."""
    program, pid, authority = _authority(config_file)
    done: list[Record] = []
    try:
        for each in which:
            done += authority.revoke(each)
    except AuthorityError as error:
        raise UserError(str(error), USAGE) from None
    finally:
        _told(program, pid)
    open_still = _cut_off({each.client for each in done}, config_file, authority)
    if as_json:
        print_json({"revoked": done, "open": sorted(open_still)})
    else:
        for record in done:
            print(f"{record.client} {record.serial} is revoked")
        if not done:
            say("they were revoked before")
    if open_still:
        names = ", ".join(sorted(open_still)[:NAMES_SHOWN])
        say(f"mosquitto did not end the sessions of {names} in time; revoke them once more before you issue others")
    return 0


def ls(config_file: Path | None, as_json: bool) -> int:
    """The certificates that have not ended."""
    _, _, authority = _authority(config_file)
    try:
        records = authority.records()
    except AuthorityError as error:
        raise UserError(str(error)) from None
    with verdict_after():
        if as_json:
            print_json({"certificates": records})
            return 0
        table = Table("client", "serial", "until", "state", box=None, pad_edge=False)
        for each in records:
            table.add_row(each.client, each.serial, _day(each.until_ms), STATES[bool(each.revoked_ms)])
        if records:
            out().print(table)
    say(counted(len(records), "certificate"))
    return 0


def _authority(config_file: Path | None) -> tuple[Path, int, Authority]:
    """The folder of the local mosquitto, its process, and its authority. Raises `UserError`."""
    folder, program = local(config_file)
    made = Authority(folder / AUTHORITY)
    if not made.made:
        raise UserError(
            "clients have no certificates here; set fleet.tls_bind, for example 0.0.0.0:8883, and start again", USAGE
        )
    return folder, program.pid, made


def _cut_off(names: Collection[str], config_file: Path | None, authority: Authority) -> set[str]:
    """End the sessions of clients without another certificate. Returns those that may be open still."""
    folder, program = local(config_file)
    revoked = set(names) & authority.banned()
    if not revoked or not program.pid:
        return set()
    try:
        return asyncio.run(expel(folder, program.bind, revoked, lambda: _told(folder, program.pid)))
    except OSError:
        return revoked


def _told(folder: Path, pid: int) -> None:
    """Let mosquitto read the list of revoked certificates, and the list of access."""
    ban(folder)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)


def _day(ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(ms / 1000))
