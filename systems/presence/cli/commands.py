"""The subcommands of presence. Data on stdout; a reader's refusal is one line and an exit code."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.table import Table

from muster_server.control.errors import FAILURE, USAGE, UserError
from muster_server.control.host.shown import one_line
from muster_server.control.terminal import common, sparks
from muster_server.control.terminal.found import Target
from muster_server.control.terminal.texts import Texts
from muster_server.control.terminal.users import user_of
from muster_server.control.terminal.words import say
from muster_server.systems.presence.asking import Readers
from muster_server.systems.presence.cli.reach import named_json, reaching, texts_among
from muster_server.systems.presence.described import described, whole
from muster_server.systems.presence.options import shards as shards_of
from muster_server.systems.presence.questions import ALL, ShardStats, User
from muster_server.systems.presence.status import NewStatus, Status, check_text

WORDS: Final = {"available": "available", "away": "away", "dnd": "do not disturb", "invisible": "invisible to others"}
BATCH: Final = 1_000
"""Limit of users in one request."""
AGAIN_S: Final = 1.0


def asked(where: Target, users: Sequence[str], file: Path | None) -> tuple[list[int], dict[int, str]]:
    """The users that a subcommand names, and the names of those that are text. Raises `UserError`."""
    named = list(users)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: {error}", USAGE) from None
        named += [line.strip() for line in lines if line.strip()]
    if not named and file is None:
        raise UserError("no user given; see --help", USAGE)
    numbers = [user_of(where, text) for text in named]
    return numbers, texts_among(zip(numbers, named, strict=True))


def check_site(where: Target, site: int | None) -> None:
    """Raises `UserError` for an unknown site."""
    sites = where.config().section("presence").sites
    if site is not None and site > sites:
        raise UserError(
            f"--site: unknown site {site} (this instance has the sites 1 to {sites}; see presence.sites)", USAGE
        )


async def who(where: Target, users: Sequence[str], file: Path | None, site: int | None, as_json: bool) -> int:
    """Look users up."""
    check_site(where, site)
    numbers, known = asked(where, users, file)

    async def work(readers: Readers, texts: Texts) -> int:
        batches = [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)]
        found = [await readers.who(batch, site) for batch in batches]
        statuses: dict[int, Status] = {}
        for batch in batches:
            statuses |= await readers.statuses(batch, site)
        named = await texts.of(numbers)
        with common.verdict_after():
            for user in itertools.chain.from_iterable(each.users for each in found):
                if as_json:
                    common.print_json(shown(user, named, statuses.get(user.user)), line=True)
                else:
                    _show(user, named, statuses.get(user.user))
        return 0

    return await reaching(where, work, known)


def shown(user: User, texts: Mapping[int, str], status: Status | None = None) -> dict[str, Any]:
    """A user in JSON form, as it is; times in ms since 1970."""
    return named_json(user.user, texts) | {
        "online": bool(user.devices),
        "devices": [
            {"device": each.device, "gateway": each.gateway, "since": each.since_ms}
            for each in sorted(user.devices, key=lambda each: (each.device, each.gateway))
        ],
        "last_seen": user.last_seen_ms,
        "status": _told(status),
    }


def _named(user: int, texts: Mapping[int, str]) -> str:
    return f"{user} {one_line(texts[user])}" if user in texts else str(user)


def _show(user: User, texts: Mapping[int, str], status: Status | None) -> None:
    console, name = common.out(), _named(user.user, texts)
    said = "" if status is None else f"; {in_words(status)}"
    if not user.devices:
        seen = "" if user.last_seen_ms is None else f", last seen {_when(user.last_seen_ms)}"
        console.print(f"{name}: not online{seen}{said}", soft_wrap=True, markup=False)
        return
    parts = [
        f"{one_line(each.device)} at gateway {each.gateway} since {_when(each.since_ms)}"
        for each in sorted(user.devices, key=lambda each: (each.device, each.gateway))
    ]
    console.print(f"{name}: online: {'; '.join(parts)}{said}", soft_wrap=True, markup=False)


def _told(status: Status | None) -> dict[str, Any] | None:
    return None if status is None else msgspec.structs.asdict(status)


def in_words(status: Status | None) -> str:
    """A status in a few words."""
    if status is None:
        return "no status"
    text = f" ({one_line(status.text)})" if status.text else ""
    return f"{WORDS[status.mode]}{text}{'' if status.until is None else f' until {_when(status.until)}'}"


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1_000))


async def watch(where: Target, users: Sequence[str], file: Path | None, site: int | None, as_json: bool) -> int:
    """Show changes until the end of the program."""
    check_site(where, site)
    numbers, known = asked(where, users, file)
    if not numbers:
        raise UserError(f"{file} contains no user", USAGE)

    async def work(readers: Readers, texts: Texts) -> int:
        said = False
        async for told in readers.watch(numbers, site, statuses=True, own=ALL):
            change = told.change
            if not change:
                if not said and not as_json:
                    say(f"watching {common.counted(len(numbers), 'user')}")
                said = True
                continue
            said = msgspec.json.decode(change)
            user = int(said["user"])
            named = await texts.of([user])
            if as_json:
                common.print_json(named_json(user, named) | said, line=True)
            elif told.status:
                status = None if said["status"] is None else msgspec.convert(said["status"], Status)
                print(f"{_named(user, named)}: {in_words(status)}", flush=True)
            else:
                reason = f" ({said['reason']})" if said["reason"] else ""
                device = one_line(said["device"])
                print(
                    f"{_named(user, named)}: {device} {said['state']}{reason} at gateway {said['gateway']}", flush=True
                )
        return 0

    return await reaching(where, work, known)


async def status(where: Target, user: str, new: NewStatus, as_json: bool) -> int:
    """Set the status of a user, and print it. Raises `UserError`."""
    number = user_of(where, user)
    try:
        check_text(new.text)
    except ValueError as error:
        raise UserError(f"--{error}", USAGE) from None

    async def work(readers: Readers, texts: Texts) -> int:
        now = await readers.set_status(number, new)
        named = await texts.of([number])
        if as_json:
            common.print_json(named_json(number, named) | {"status": _told(now)})
        else:
            common.out().print(f"{_named(number, named)}: {in_words(now)}", soft_wrap=True, markup=False)
        return 0

    return await reaching(where, work, texts_among([(number, user)]))


async def stats(where: Target, again: bool, as_json: bool) -> int:
    """Show the state of all shards."""

    counts = dict(enumerate(shards_of(where.config().section("presence")), 1))
    past = sparks.Lately() if again and not as_json and sparks.drawn() else None

    async def work(readers: Readers, _: Texts) -> int:
        while True:
            shards = whole(await readers.stats(), counts)
            with common.verdict_after():
                if as_json:
                    common.print_json([described(each) for each in shards], line=again)
                else:
                    common.out().print(table(shards, past))
                    for line in _gateways(shards):
                        common.out().print(line, soft_wrap=True)
            if not again:
                return FAILURE if any(each.why for each in shards) else 0
            await asyncio.sleep(AGAIN_S)

    return await reaching(where, work)


def table(shards: Sequence[ShardStats], past: sparks.Lately | None = None) -> Table:
    """A row for each shard. `past`: devices of earlier tables, which this one joins; None: no column shows them."""
    table = Table(box=None, header_style="bold")
    for name in ("site", "shard", "users", "devices", "gateways", "gaps", "asks", "full states", "unpublished"):
        table.add_column(name, justify="right")
    if past is not None:
        table.add_column("devices lately")
    table.add_column("state")
    for each in shards:
        writer = each.writer
        served = "serves from a copy" if each.copy is not None and not each.copy.why else "serves"
        state = served if not each.why else f"refused: {each.why}"
        place = (str(each.site), f"{each.shard} of {each.shards}", "" if each.users is None else str(each.users))
        lately = []
        if past is not None:
            lately = [past.add((each.site, each.shards, each.shard), None if writer is None else writer.online)]
        if writer is None:
            table.add_row(*place, *[""] * 6, *lately, state)
            continue
        table.add_row(
            *place,
            str(writer.online),
            str(len(writer.gateways)),
            str(sum(source.missing for source in writer.gateways)),
            f"{writer.asks} ({writer.asked})",
            f"{writer.fulls} ({writer.fulls_asked})",
            str(writer.unpublished),
            *lately,
            state,
        )
    return table


def _gateways(shards: Sequence[ShardStats]) -> Iterator[str]:
    for each in shards:
        for source in each.writer.gateways if each.writer else ():
            lag = source.highest - source.complete
            how = f"version {source.complete}, lag {lag}" if source.followed else "its full state is being sent"
            yield f"site {each.site}, shard {each.shard}: gateway {source.gateway} (epoch {source.epoch}): {how}"
