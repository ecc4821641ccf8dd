"""The subcommands of `muster topic` and `muster delay`: ask the nodes of the system, and print their answers."""

import asyncio
import datetime
import functools
import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from rich.table import Table

from muster.clock import now_ms
from muster_server.control.cluster.instance import Record
from muster_server.control.errors import (
    ALREADY_FIRED,
    FAILURE,
    TRY_LATER,
    UNAVAILABLE,
    UNKNOWN_MESSAGE,
    USAGE,
    UserError,
)
from muster_server.control.host.shown import one_line
from muster_server.control.terminal import common, sparks
from muster_server.control.terminal.durations import UNITS, length
from muster_server.control.terminal.found import Target, client_of, once
from muster_server.control.terminal.words import say
from muster_server.systems.messages.link import SCRUB_S, Link
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.shapes import (
    EVER,
    ID,
    KEY_CHARS_MAX,
    LIVE,
    TAG,
    TAGS_MAX,
    Change,
    Changed,
    Dead,
    DeadPage,
    LetterPage,
    LettersChanged,
    Listed,
    Query,
    Refused,
    Scrubbed,
    Send,
    Sent,
    Shown,
    Stats,
    TopicState,
    is_id,
)
from muster_server.systems.messages.system import ADMIN, RECEIVE
from muster_server.systems.messages.topics import POLICIES, NewTopic, Topic, TopicChange

T = TypeVar("T")
BAR: Final = 40
MINUTES_MAX: Final = 15
"""Minutes of a topic that are shown."""
STATES: Final = ("scheduled", "firing", "done", "dead", "withdrawn")
WHY: Final = {
    "unreachable": "it cannot be reached",
    "failing": "it failed repeatedly",
    "paused": "it asked for a pause (Retry-After)",
}
CODES: Final = {"done": 0, "unknown": UNKNOWN_MESSAGE}
"""Exit codes by outcome; all others are `ALREADY_FIRED`."""


# --- asking -----------------------------------------------------------------------------------------------------------


def ask(where: Target, work: Callable[[Link, Link], Coroutine[Any, Any, T]]) -> T:
    """Ask receivers and the admin. Raises `UserError`."""
    return ask_of(once(where), work)


def ask_of(record: Record, work: Callable[[Link, Link], Coroutine[Any, Any, T]]) -> T:
    """The same for a known instance. Raises `UserError`."""
    token = client_of(record).token

    async def run() -> T:
        receive, admin = (Link(role, functools.partial(addresses, record, role), token) for role in (RECEIVE, ADMIN))
        try:
            return await work(receive, admin)
        except Refusal as refusal:
            raise UserError(f"{refusal.detail}", _code(refusal.code)) from None
        except Unreachable as error:
            raise UserError(f"{error}; try again", TRY_LATER) from None
        finally:
            await receive.close()
            await admin.close()

    return asyncio.run(run())


def addresses(record: Record, role: str) -> Sequence[tuple[str, int]]:
    found = [process.bind for process in record.of(role) if process.bind]
    if not found:
        raise UserError(f"no {role} runs here; start the system: muster up --with messages", UNAVAILABLE)
    return found


def _code(code: str) -> int:
    return {"unavailable": TRY_LATER, "busy": TRY_LATER, "disk_full": TRY_LATER, "bad_request": USAGE}.get(code, 1)


async def _topic_of(admin: Link, id: str, topic: str | None) -> str:
    """The topic of a message: the given one, or the only one. Raises `UserError`."""
    if not is_id(id):
        raise UserError(f"ID: invalid id {id!r:.80} (expected {ID})", USAGE)
    if topic is not None:
        return topic
    topics = await admin.ask("topics", None, list[Topic])
    if len(topics) != 1:
        raise UserError(f"--topic: there are {len(topics)} topics; name the topic of {id}", USAGE)
    return topics[0].name


# --- topics -----------------------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """The settings of a topic as options give them; None: not given."""

    callback: str | None
    workers: int | None
    policy: str | None
    retries: str | None
    jitter: int | None
    timeout: float | None
    allow: str | None
    retry_after_max: str | None
    rate: float | None
    concurrency: int | None
    per_key: int | None
    rate_per_key: float | None
    dead_stops_key: bool | None


def create(where: Target, names: list[str], secret: str, settings: Settings, as_json: bool) -> int:
    """Make topics with the same settings, in their order; the first error ends it. Raises `UserError`."""
    given = _fields(settings)
    new = [_converted({"name": name, "secret": secret, **given}, NewTopic) for name in names]
    made: list[Topic] = []

    async def create_all(_: Link, admin: Link) -> None:
        for each in new:
            topic = await admin.ask("topic-create", each, Topic)
            made.append(topic)

    try:
        ask(where, create_all)
    finally:
        with common.verdict_after():
            if not as_json:
                for topic in made:
                    _created(topic)
            elif made:
                found = [msgspec.structs.asdict(topic) for topic in made]
                common.print_json(found[0] if len(names) == 1 else found)
    return 0


def _created(topic: Topic) -> None:
    if topic.is_leased:
        what = "programs lease its messages"
    elif topic.subscribers:
        what = f"its messages go to {', '.join(topic.subscribers)}"
    else:
        print(topic.secrets[0])
        what = f"the secret signs its callbacks to {topic.callback}"
    say(f"muster: created topic {topic.name}; {what}")


def change_topic(
    where: Target,
    name: str,
    secret: str | None,
    rotate: bool,
    overlap: str | None,
    settings: Settings,
    as_json: bool,
) -> int:
    """Change settings of a topic. Raises `UserError`."""
    if rotate and secret is not None:
        raise UserError("--rotate excludes --secret: --rotate makes a new secret, and --secret gives one", USAGE)
    given = _fields(settings)
    given["secret"] = "" if rotate else secret or None
    given["overlap_s"] = None if overlap is None else length("--overlap", overlap) / 1_000
    given = {key: value for key, value in given.items() if value is not None}
    if not given:
        raise UserError("topic change: nothing to change; see muster topic change --help", USAGE)
    change = _converted(given, TopicChange)
    topic = ask(where, lambda _, admin: admin.ask("topic-change", (name, change), Topic))
    with common.verdict_after():
        if as_json:
            common.print_json(msgspec.structs.asdict(topic))
        else:
            if "secret" in given:
                print(topic.secrets[0])
            former = "" if len(topic.secrets) == 1 else f"; its former secret signs until {moment(topic.retire_at)}"
            say(f"muster: changed topic {topic.name}{former}")
    return 0


def pause(where: Target, name: str, paused: bool, as_json: bool) -> int:
    """Pause a topic, or resume it. Raises `UserError`."""
    topic = ask(where, lambda _, admin: admin.ask("topic-change", (name, TopicChange(paused=paused)), Topic))
    with common.verdict_after():
        if as_json:
            common.print_json({"name": topic.name, "paused": topic.paused})
        else:
            say(f"muster: topic {topic.name} {'is paused' if topic.paused else 'fires its messages'}")
    return 0


def _fields(given: Settings) -> dict[str, Any]:
    """The settings of a topic by their names in its file; None: not given. Raises `UserError`."""
    if given.policy is not None and given.policy not in POLICIES:
        raise UserError(f"--policy: invalid policy {given.policy!r:.40} (expected one of {', '.join(POLICIES)})", USAGE)
    intervals: Sequence[int] | None = None
    if given.retries is not None:
        intervals = (
            [] if given.retries in {"", "none"} else [length("--retries", each) for each in given.retries.split(",")]
        )
    pause = None if given.retry_after_max is None else length("--retry-after-max", given.retry_after_max) / 1_000
    return {
        "callback": given.callback,
        "workers": given.workers,
        "policy": given.policy,
        "retries_ms": intervals,
        "jitter": given.jitter,
        "timeout_s": given.timeout,
        "allowed": None if given.allow is None else [each.strip() for each in given.allow.split(",") if each.strip()],
        "retry_after_max_s": pause,
        "rate": given.rate,
        "concurrency": given.concurrency,
        "per_key": given.per_key,
        "rate_per_key": given.rate_per_key,
        "dead_stops_key": given.dead_stops_key,
    }


def _converted(given: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"topic: {error}", USAGE) from None


def show_topic(where: Target, name: str, as_json: bool) -> int:
    """Print a topic, without its secrets. Raises `UserError`."""
    found = ask(where, lambda _, admin: admin.ask("topic-show", name, TopicState, timeout_s=60.0))
    with common.verdict_after():
        if as_json:
            common.print_json(_state(found))
            return 0
        for label, value in _topic_lines(found):
            print(f"{label:16} {one_line(value)}")
    return 0


def _state(found: TopicState) -> dict[str, Any]:
    topic = msgspec.structs.asdict(found.topic)
    del topic["secrets"]
    return {
        **topic,
        "secrets": len(found.topic.secrets),
        "pending": found.pending,
        "dead": found.dead,
        "overdue": found.overdue,
        "overdue_ms": found.overdue_ms,
        "held": [{"url": each.url, "why": each.why, "until": each.until} for each in found.held],
    }


def _topic_lines(found: TopicState) -> list[tuple[str, str]]:
    topic = found.topic
    overlap = "" if len(topic.secrets) == 1 else f", the former one until {moment(topic.retire_at)}"
    lines = [
        ("topic", topic.name),
        ("callback", topic.callback),
        ("state", "paused" if topic.paused else "fires its messages"),
        ("secrets", f"{len(topic.secrets)}{overlap}"),
        ("workers", str(topic.workers or "all")),
        ("policy", topic.policy),
        ("retries", ",".join(_words(each) for each in topic.retries_ms) or "none"),
        ("jitter", f"{topic.jitter / 10:g} %"),
        ("timeout", f"{topic.timeout_s:g} s"),
        ("Retry-After", f"at most {_words(round(topic.retry_after_max_s * 1_000))}"),
        ("rate", f"at most {topic.rate:g} a second" if topic.rate else "any"),
        ("concurrency", f"at most {topic.concurrency}" if topic.concurrency else "any"),
        ("of one key", _per_key(topic)),
        ("allowed", ", ".join(topic.allowed) or "public addresses"),
        ("waiting", str(found.pending)),
        ("overdue", str(found.overdue) + (f", the oldest for {_words_s(found.overdue_ms)}" if found.overdue else "")),
        ("dead letters", str(found.dead)),
    ]
    now = now_ms()
    for each in found.held:
        left = f"for {_words_s(each.until - now)} more" if each.until > now else "and is being tried"
        lines.append(("held", f"{each.url}: {WHY[each.why]}; it gets nothing {left}"))
    return lines


def _per_key(topic: Topic) -> str:
    rate = f"at most {topic.rate_per_key:g} a second" if topic.rate_per_key else ""
    if not topic.per_key:
        return rate or "any"
    dead = "; a dead letter stops its key" if topic.dead_stops_key else ""
    order = "one after another" if topic.per_key == 1 else f"at most {topic.per_key} at once"
    return ", ".join(filter(None, (order, rate))) + dead


def topics(where: Target, as_json: bool) -> int:
    """List the topics. Raises `UserError`."""
    found = ask(where, lambda _, admin: admin.ask("topics", None, list[Topic]))
    with common.verdict_after():
        if as_json:
            common.print_json([msgspec.structs.asdict(topic) for topic in found])
        elif found:
            table = Table("topic", "callback", "workers", "policy", "retries", "timeout s", box=None, pad_edge=False)
            for topic in found:
                retries = ",".join(_words(each) for each in topic.retries_ms) or "none"
                workers = str(topic.workers or "all")
                table.add_row(topic.name, topic.callback, workers, topic.policy, retries, f"{topic.timeout_s:g}")
            common.out().print(table)
    return 0


def remove(where: Target, name: str, forget: bool) -> int:
    """Remove a topic; `forget`: with its dead letters. Raises `UserError`."""
    question = "topic-forget" if forget else "topic-remove"
    ask(where, lambda _, admin: admin.ask(question, name, Topic, timeout_s=60.0))
    say(f"muster: removed topic {name}")
    return 0


def stats(where: Target, name: str, as_json: bool) -> int:
    """Print the figures of a topic. Raises `UserError`."""
    found = ask(where, lambda _, admin: admin.ask("stats", name, Stats))
    with common.verdict_after():
        if as_json:
            common.print_json(msgspec.to_builtins(found))
            return 0
        columns = (
            "accepted",
            "fired",
            "retries",
            "dead",
            "withdrawn",
            "lateness_p50_ms",
            "lateness_p99_ms",
            "callback_ms",
        )
        table = Table(box=None, pad_edge=False)
        table.add_column("minute")
        for column in columns:
            table.add_column(column.replace("_", " "), justify="right")
        minutes = found.minutes[-MINUTES_MAX:]
        for minute in minutes:
            cells = ["" if minute[column] is None else f"{minute[column]:g}" for column in columns]
            table.add_row(moment(minute["minute"]), *cells)
        if len(minutes) > 1 and sparks.drawn():
            series = ([each[column] for each in minutes if each[column] is not None] for column in columns)
            table.add_row("lately", *(sparks.spark(values) for values in series))
        if found.minutes:
            common.out().print(table)
        more = "at least " if found.more else ""
        print(
            f"{more}{found.pending} wait" + (", by the time until they are due:" if any(found.backlog.values()) else "")
        )
        most = max(found.backlog.values(), default=0)
        for label, count in found.backlog.items():
            if count:
                print(f"{label:>12} {sparks.bar(count, most, BAR):{BAR}} {count}")
        if found.overdue:
            print(
                f"{found.overdue} messages are overdue, the oldest for {_words_s(found.overdue_ms)}; see muster "
                f"topic show {name}"
            )
    return 0


# --- messages -------------------------------------------------------------------------------------------------------


def send(
    where: Target,
    topic: str,
    text: str,
    after: str | None,
    at: str | None,
    id: str | None,
    window: str,
    expires: str | None,
    target: str,
    kind: str,
    key: str,
    tags: Sequence[str],
    as_json: bool,
) -> int:
    """Send a message. Raises `UserError`."""
    if after is not None and at is not None:
        raise UserError("--in excludes --at: give one of them", USAGE)
    if id is not None and not is_id(id):
        raise UserError(f"--id: invalid id {id!r:.80} (expected {ID})", USAGE)
    if len(key) > KEY_CHARS_MAX:
        raise UserError(f"--key: {len(key)} characters (limit {KEY_CHARS_MAX})", USAGE)
    if len(tags) > TAGS_MAX:
        raise UserError(f"--tag: {len(tags)} tags (limit {TAGS_MAX})", USAGE)
    body = sys.stdin.buffer.read() if text == "-" else common.typed(text)
    sent = Send(
        body=body,
        id=id,
        in_ms=None if after is None else length("--in", after),
        at=None if at is None else instant("--at", at),
        window_ms=length("--window", window),
        expires_at=None if expires is None else now_ms() + length("--expires", expires),
        target=target,
        kind=kind or _kind(body),
        key=key,
        tags=tuple(map(checked_tag, tags)),
    )
    (answer,) = ask(where, lambda receive, _: receive.ask("send", (topic, [sent]), list[Sent | Refused]))
    if isinstance(answer, Refused):
        raise UserError(answer.detail, _code(answer.code))
    with common.verdict_after():
        if as_json:
            common.print_json(msgspec.structs.asdict(answer))
        else:
            before = f", sent before, {answer.state}" if answer.duplicate else ""
            print(f"{answer.id} due {moment(answer.due_at)}{before}")
    return 0


def show(where: Target, id: str, topic: str | None, as_json: bool) -> int:
    """Show a message. Raises `UserError`."""

    async def work(receive: Link, admin: Link) -> Shown | None:
        name = await _topic_of(admin, id, topic)
        return (await receive.ask("show", (name, [id]), list[Shown | None]))[0]

    found = ask(where, work)
    with common.verdict_after():
        if as_json:
            common.print_json({"id": id, "state": "unknown"} if found is None else document(found))
        elif found is None:
            print("unknown")
        else:
            print("\n".join(f"{name:12} {one_line(value)}" for name, value in _lines(found)))
    return UNKNOWN_MESSAGE if found is None else 0


def change(where: Target, id: str, topic: str | None, verb: Any, by: str | None, to: str | None, as_json: bool) -> int:
    """Cancel, postpone or advance a message. Raises `UserError`."""
    if verb != "cancel" and (by is None) == (to is None):
        raise UserError("give either --by or --to", USAGE)
    asked = Change(
        id=id,
        verb=verb,
        by_ms=None if by is None else length("--by", by),
        at=None if to is None else instant("--to", to),
    )

    async def work(receive: Link, admin: Link) -> Changed | Refused:
        name = await _topic_of(admin, id, topic)
        return (await receive.ask("change", (name, [asked]), list[Changed | Refused]))[0]

    answer = ask(where, work)
    if isinstance(answer, Refused):
        raise UserError(answer.detail, _code(answer.code))
    with common.verdict_after():
        if as_json:
            common.print_json(msgspec.structs.asdict(answer))
        else:
            due = "" if answer.due_at is None or verb == "cancel" else f", due {moment(answer.due_at)}"
            waits = "; the change is applied if the message comes" if answer.outcome == "unknown" else ""
            print(f"{answer.outcome}{due}{waits}")
    return CODES.get(answer.outcome, ALREADY_FIRED)


def ls(
    where: Target,
    topic: str,
    due: str | None,
    state: list[str] | None,
    tag: str,
    limit: int,
    after: str,
    as_json: bool,
) -> int:
    """List messages. Raises `UserError`."""
    wrong = [each for each in state or () if each not in STATES]
    if wrong:
        raise UserError(f"--state: invalid state {wrong[0]!r:.40} (expected one of {', '.join(STATES)})", USAGE)
    end = EVER if due is None else now_ms() + length("--due", due)
    query = Query(topic, 0, end, state or list(LIVE), limit, after, checked_tag(tag) if tag else "")
    found = ask(where, lambda _, admin: admin.ask("list", query, Listed, timeout_s=60.0))
    with common.verdict_after():
        if as_json:
            common.print_json(
                {
                    "messages": [document(each) for each in found.messages],
                    "matching": found.matching,
                    "more": found.more,
                    "next": found.next or None,
                }
            )
            return 0
        if found.messages:
            table = Table("id", "topic", "state", "due", "attempts", "bytes", box=None, pad_edge=False)
            for each in found.messages:
                table.add_row(
                    each.id, each.topic, each.state, moment(each.due_at), str(each.attempts), str(len(each.body))
                )
            common.out().print(table)
        more = "at least " if found.more else ""
        total = "" if tag else f" of {more}{found.matching}"
        say(f"{len(found.messages)}{total}{_onward(found.next)}")
    return 0


def scrubbed(record: Record) -> Scrubbed:
    """The findings of a scrub of the schedule while its center serves. Raises `UserError`."""
    return ask_of(record, lambda _, admin: admin.ask("scrub", None, Scrubbed, timeout_s=SCRUB_S))


def scrub(where: Target, as_json: bool) -> int:
    """Check that the schedule is intact. Raises `UserError`."""
    found = scrubbed(once(where))
    with common.verdict_after():
        if as_json:
            common.print_json(msgspec.structs.asdict(found))
        else:
            for fault in found.faults:
                print(one_line(fault))
            verdict = "whole" if not found.fault_count else f"{found.fault_count} faults"
            print(f"{found.messages} messages, {found.bodies} bodies: {verdict}")
    return FAILURE if found.fault_count else 0


# --- dead letters -----------------------------------------------------------------------------------------------------


def dead(where: Target, topic: str, limit: int, after: str, as_json: bool) -> int:
    """List dead letters. Raises `UserError`."""
    query = Query(topic, 0, EVER, ["dead"], limit, after)
    page = ask(where, lambda _, admin: admin.ask("dead-page", query, DeadPage, timeout_s=60.0))
    found = page.letters
    with common.verdict_after():
        if as_json:
            common.print_json([_letter(each) for each in found])
        elif found:
            table = Table("id", "topic", "died", "attempts", "last", "answer", box=None, pad_edge=False)
            for each in found:
                message = each.message
                died = moment(each.at) if each.at else ""
                answer = _text(each.answer)[:60]
                table.add_row(message.id, message.topic, died, str(message.attempts), _last(each), answer)
            common.out().print(table)
        if page.next:
            say(f"{len(found)} letters{_onward(page.next)}")
    return 0


def dead_one(where: Target, topic: str, id: str, as_json: bool) -> int:
    """Show a dead letter. Raises `UserError`."""

    async def work(_: Link, admin: Link) -> Dead | None:
        after = ""
        while True:
            query = Query(topic, 0, EVER, ["dead"], 1_000, after)
            page = await admin.ask("dead-page", query, DeadPage, timeout_s=60.0)
            for each in page.letters:
                if each.message.id == id:
                    return each
            after = page.next
            if not after:
                return None

    letter = ask(where, work)
    with common.verdict_after():
        if as_json:
            common.print_json([] if letter is None else _letter(letter))
        elif letter is not None:
            lines = [*_lines(letter.message), ("last", _last(letter)), ("answer", _text(letter.answer))]
            print("\n".join(f"{name:12} {one_line(value)}" for name, value in lines))
    if letter is None:
        say(f"muster: no dead letter {id}")
        return UNKNOWN_MESSAGE
    return 0


def _onward(next: str) -> str:
    return f"; next page: --after {next}" if next else ""


def letters(where: Target, verb: str, topic: str | None, ids: list[str], everything: bool, as_json: bool) -> int:
    """Change dead letters: `verb` is `replay` or `drop`. Raises `UserError`."""
    if bool(ids) == everything:
        raise UserError("ID, --all: give either ids of dead letters, or --all for all of a topic", USAGE)

    async def work(_: Link, admin: Link) -> list[Changed]:
        name = await _topic_of(admin, ids[0] if ids else "all", topic)
        if not everything:
            return await admin.ask(verb, (name, ids), list[Changed])
        done: list[Changed] = []
        asked = LetterPage(name)
        while True:
            page = await admin.ask(f"{verb}-page", asked, LettersChanged, timeout_s=60.0)
            # A letter that was changed otherwise since it was listed needs nothing.
            done += [each for each in page.changed if each.outcome == "done"]
            if not page.next:
                return done
            asked = LetterPage(name, page.until, page.next)

    answers = ask(where, work)
    word = "replayed" if verb == "replay" else "dropped"
    with common.verdict_after():
        if as_json:
            common.print_json([msgspec.structs.asdict(answer) for answer in answers])
        else:
            for answer in answers:
                print(f"{answer.id} {word if answer.outcome == 'done' else answer.outcome}")
    return 0 if all(answer.outcome == "done" for answer in answers) else UNKNOWN_MESSAGE


# --- texts and times --------------------------------------------------------------------------------------------------


def checked_tag(text: str) -> str:
    """A tag. Raises `UserError`."""
    if not re.match(TAG, text):
        raise UserError(f"--tag: invalid tag {text!r:.80} (expected {TAG})", USAGE)
    return text


def instant(flag: str, text: str) -> int:
    """Milliseconds since 1970 of `now` or an ISO 8601 time with its zone. Raises `UserError`."""
    if text == "now":
        return now_ms()
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise UserError(
            f"{flag}: invalid time {text!r:.40} (expected a time with its zone, for example 2027-01-01T00:00:00+08:00)",
            USAGE,
        )
    return round(found.timestamp() * 1_000)


def moment(at: int) -> str:
    """Format a time for people, in UTC."""
    try:
        made = datetime.datetime.fromtimestamp(at / 1_000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at} ms"
    return made.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def document(message: Shown) -> dict[str, Any]:
    """A message for JSON: the body as text if it is text, else in base64."""
    said: dict[str, Any] = msgspec.to_builtins(message)
    try:
        said["body"] = message.body.decode()
    except UnicodeDecodeError:
        del said["body"]
        said["body_base64"] = msgspec.to_builtins(message)["body"]
    return said


def _letter(letter: Dead) -> dict[str, Any]:
    answer = _text(letter.answer)
    return {
        **document(letter.message),
        "died_at": letter.at or None,
        "last": letter.outcome,
        "status": letter.status,
        "answer": answer,
    }


def _last(letter: Dead) -> str:
    return letter.outcome if letter.status is None else f"{letter.outcome} {letter.status}"


def _lines(message: Shown) -> list[tuple[str, str]]:
    lines = [
        ("id", message.id),
        ("topic", message.topic),
        ("state", message.state),
        ("due", moment(message.due_at)),
        ("attempts", str(message.attempts)),
        ("accepted", moment(message.accepted_at)),
        ("body", f"{len(message.body)} bytes of {message.kind}"),
    ]
    if message.key:
        lines.append(("key", message.key))
    if message.tags:
        lines.append(("tags", ", ".join(message.tags)))
    if message.key and message.state == "retry" and not message.attempts:
        lines.append(("waits", "for its turn among the messages of its key, or for its target"))
    elif message.state == "retry" and message.next_at is not None:
        lines.append(("next attempt", moment(message.next_at)))
    if message.expires_at is not None:
        lines.append(("expires", moment(message.expires_at)))
    if message.target:
        lines.append(("target", message.target))
    return lines


def _text(data: bytes) -> str:
    return "".join(each if each.isprintable() else " " for each in data.decode(errors="replace"))


def _kind(body: bytes) -> str:
    try:
        msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return "application/octet-stream"
    return "application/json"


def _words_s(ms: int) -> str:
    """Format a duration in the two largest units, down to seconds."""
    left, parts = max(ms, 0) // 1_000 * 1_000, list[str]()
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def _words(ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if ms % UNITS[unit] == 0:
            return f"{ms // UNITS[unit]}{unit}"
    return f"{ms}ms"
