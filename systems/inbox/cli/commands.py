"""The subcommands of inboxes. Data on stdout; a refusal is one line and an exit code."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, cast, get_args

import msgspec

from muster.clock import now_ms
from muster_server.control.cluster import instance
from muster_server.control.errors import FAILURE, UNAVAILABLE, USAGE, UserError
from muster_server.control.host.shown import one_line
from muster_server.control.terminal import calls, common
from muster_server.control.terminal.durations import length
from muster_server.control.terminal.found import Target, found
from muster_server.control.terminal.users import user_of
from muster_server.systems.inbox.asking import AWAY, Address, Inboxes
from muster_server.systems.inbox.options import DAY_MS
from muster_server.systems.inbox.shapes import (
    NUMBER_MAX,
    ROLE,
    Broadcast,
    Choice,
    Choose,
    Chosen,
    Count,
    Counts,
    Cursor,
    Done,
    Entry,
    Join,
    Mail,
    Mark,
    New,
    Noted,
    Notify,
    Numbered,
    Page,
    Read,
    Stats,
    Totals,
    cursor,
)

YES: Final = {"yes": True, "no": False, "default": None}
SAID: Final = {True: "yes", False: "no", None: "default"}


async def reaching(where: Target, work: Callable[[Inboxes], Awaitable[int]]) -> int:
    """Run the work of a subcommand and return its exit code. Raises `UserError`."""
    async with found(where) as nodes:
        record = await nodes.record()
        inboxes = Inboxes(calls.look(where, nodes, record, ROLE), _key(where, record))
        try:
            with calls.in_one_line():
                return await work(inboxes)
        finally:
            await inboxes.close()


async def nodes_and_key(where: Target) -> tuple[list[Address], bytes]:
    """The nodes as they are now, and the key that proves the cluster's secret to them. Raises `UserError`."""
    async with found(where) as nodes:
        record = await nodes.record()
    key = _key(where, record)
    return [each.bind for each in record.processes if each.role == ROLE and each.bind], key


def _key(where: Target, record: instance.Record) -> bytes:
    if ROLE not in {each.role for each in record.processes}:
        raise UserError(AWAY, UNAVAILABLE)
    return calls.key(where)


async def ls(where: Target, user: str, kind: str, before: str, after: str, limit: int, as_json: bool) -> int:
    """Show a page."""
    if before and after:
        raise UserError("--before excludes --after", USAGE)
    number = user_of(where, user)
    back = _cursor("--before", before, NUMBER_MAX) if before else None
    asked = Read(number, _cursor("--after", after) if after else None, back, kind, limit)

    async def work(inboxes: Inboxes) -> int:
        page = await inboxes.ask(asked, Page)
        with common.verdict_after():
            if as_json:
                for entry in page.entries:
                    common.print_json(_json(entry), line=True)
            else:
                _show(page, after=bool(after))
        return 0

    return await reaching(where, work)


async def notify(
    where: Target,
    user: str,
    text: str,
    kind: str,
    group: str,
    actor: str,
    id: str,
    as_json: bool,
    *,
    is_json: bool,
) -> int:
    """Put one entry in. The exit code is 1 if there is none afterwards."""
    asked = Notify([user_of(where, user)], New(kind, _data(text, is_json=is_json), group, actor, id))

    async def work(inboxes: Inboxes) -> int:
        (said,) = await inboxes.ask(asked, tuple[Noted])
        with common.verdict_after():
            if as_json:
                common.print_json({"seq": said.seq, "outcome": said.outcome})
            else:
                print(_OUTCOMES[said.outcome].format(seq=said.seq, id=id, kind=kind, user=user))
        return 0 if said.seq and said.outcome != "conflict" else FAILURE

    return await reaching(where, work)


_OUTCOMES: Final = {
    "new": "entry {seq}",
    "grown": "entry {seq}, of a group that has grown",
    "same": "entry {seq} was there before; nothing changed",
    "off": "no entry: user {user} has turned {kind} off",
    "conflict": "no entry: another one has the id {id}",
}


async def broadcast(
    where: Target,
    audience: str,
    text: str,
    kind: str,
    until: str,
    actor: str,
    id: str,
    as_json: bool,
    *,
    is_json: bool,
) -> int:
    """Add one broadcast."""
    days: int = where.config().section(ROLE).broadcast_days
    ends = now_ms() + (length("--until", until) if until else days * DAY_MS)
    asked = Broadcast(audience, New(kind, _data(text, is_json=is_json), "", actor, id), ends)

    async def work(inboxes: Inboxes) -> int:
        said = await inboxes.ask(asked, Numbered)
        with common.verdict_after():
            if as_json:
                common.print_json({"id": f"b{said.number}", "outcome": said.outcome, "until": ends})
            elif said.outcome == "conflict":
                print(f"no broadcast: another one has the id {id}")
            else:
                print(
                    f"broadcast b{said.number}{' was there before; nothing changed' if said.outcome == 'same' else ''}"
                )
        return FAILURE if said.outcome == "conflict" else 0

    return await reaching(where, work)


async def unread(where: Target, user: str, as_json: bool) -> int:
    """Show counts."""
    asked = Count(user_of(where, user))

    async def work(inboxes: Inboxes) -> int:
        _show_counts(await inboxes.ask(asked, Counts), as_json)
        return 0

    return await reaching(where, work)


async def read(where: Target, user: str, to: str, kind: str, as_json: bool) -> int:
    """Mark entries, and show the counts after it."""
    number = user_of(where, user)
    until = _cursor("--to", to, NUMBER_MAX) if to else Cursor(NUMBER_MAX, NUMBER_MAX)

    async def work(inboxes: Inboxes) -> int:
        await inboxes.ask(Mark(number, "read", until, kind), Done)
        _show_counts(await inboxes.ask(Count(number), Counts), as_json)
        return 0

    return await reaching(where, work)


async def follow(where: Target, audience: str, users: Sequence[str], as_json: bool, *, leave: bool) -> int:
    """Change an audience."""
    asked = Join(audience, [user_of(where, user) for user in users], leave)

    async def work(inboxes: Inboxes) -> int:
        done = await inboxes.ask(asked, Done)
        with common.verdict_after():
            if as_json:
                common.print_json({"changed": done.count})
            else:
                print(f"{common.counted(done.count, 'user')} {'removed' if leave else 'added'}")
        return 0

    return await reaching(where, work)


async def settings(where: Target, user: str, kind: str, keeps: str, pushes: str, mail: str, as_json: bool) -> int:
    """Show or change settings."""
    number = user_of(where, user)
    given = any((keeps, pushes, mail))
    if given and not kind:
        raise UserError("missing KIND: settings belong to a kind", USAGE)

    async def work(inboxes: Inboxes) -> int:
        said = await inboxes.ask(Choose(number), Chosen)
        if given:
            choice = _chosen(said.kinds.get(kind, Choice()), keeps, pushes, mail)
            said = await inboxes.ask(Choose(number, {kind: choice}), Chosen)
        with common.verdict_after():
            if as_json:
                common.print_json(said.kinds)
            else:
                for name, choice in sorted(said.kinds.items()):
                    print(
                        f"{name}: inbox {SAID[choice.inbox]}, push {SAID[choice.push]}, mail {choice.mail or 'default'}"
                    )
        return 0

    return await reaching(where, work)


async def stats(where: Target, as_json: bool) -> int:
    """Show totals."""

    async def work(inboxes: Inboxes) -> int:
        said = await inboxes.ask(Stats(), Totals)
        with common.verdict_after():
            if as_json:
                common.print_json(
                    {"users": said.users, "entries": said.entries, "broadcasts": said.broadcasts, "mails": said.mails}
                )
            else:
                print(
                    f"{common.counted(said.users, 'user')}, {said.entries} entries, "
                    f"{common.counted(said.broadcasts, 'broadcast')}, {common.counted(said.mails, 'waiting mail')}"
                )
        return 0

    return await reaching(where, work)


def _chosen(before: Choice, keeps: str, pushes: str, mail: str) -> Choice:
    """The setting with these changes. Raises `UserError`."""
    for flag, text in (("--inbox", keeps), ("--push", pushes)):
        if text and text not in YES:
            raise UserError(f"{flag}: invalid {text!r:.40} (expected yes, no or default)", USAGE)
    ways = get_args(Mail)
    if mail and mail not in {*ways, "default"}:
        raise UserError(f"--mail: invalid {mail!r:.40} (expected {', '.join(ways)} or default)", USAGE)
    way = cast("Literal['never', 'at_once', 'unless_read', 'daily']", mail)
    return Choice(
        YES[keeps] if keeps else before.inbox,
        YES[pushes] if pushes else before.push,
        before.mail if not mail else None if mail == "default" else way,
    )


def _cursor(flag: str, text: str, number: int = 0) -> Cursor:
    try:
        return cursor(text, number)
    except ValueError as error:
        raise UserError(f"{flag}: {error}", USAGE) from None


def _data(text: str, *, is_json: bool) -> bytes:
    """The data of an entry, in JSON. Raises `UserError`."""
    if not is_json:
        return msgspec.json.encode(text.encode(errors="replace").decode())
    try:
        return msgspec.json.encode(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"TEXT is not JSON: {error}", USAGE) from None


def _json(entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = {"id": entry.id, "kind": entry.kind, "at": entry.at, "read": entry.read}
    said |= {"count": entry.count, "group": entry.group, "actor": entry.actor, "audience": entry.audience}
    return said | {"data": msgspec.json.decode(entry.data)}


def _show(page: Page, *, after: bool) -> None:
    console = common.out()
    if not page.entries:
        console.print("no entries")
    for entry in page.entries:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at / 1_000))
        value = msgspec.json.decode(entry.data)
        text = value if isinstance(value, str) else entry.data.decode(errors="replace")
        parts = [entry.id, at, entry.kind, "" if entry.read else "unread", f"x{entry.count}" if entry.count > 1 else ""]
        console.print("  ".join(filter(None, [*parts, one_line(entry.actor), one_line(text)])))
    if page.more:
        console.print(f"more: {'--after' if after else '--before'} {page.end}")


def _show_counts(said: Counts, as_json: bool) -> None:
    with common.verdict_after():
        if as_json:
            common.print_json({"unread": said.unread, "unseen": said.unseen})
            return
        if not said.unread:
            print("nothing unread")
        for kind, count in sorted(said.unread.items()):
            print(f"{kind}: {count} unread, {said.unseen.get(kind, 0)} unseen")
