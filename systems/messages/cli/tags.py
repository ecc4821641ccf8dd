"""`muster delay tag count | cancel | move`: jobs over the waiting messages of a topic that have a tag.

A job is driven from here, a page at a time, so it ends with the command; run again, it goes on with what is left.
"""

import time
from typing import Final, Literal

from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target
from muster_server.control.terminal.words import say
from muster_server.systems.messages.cli.commands import ask, checked_tag, instant
from muster_server.systems.messages.link import Link
from muster_server.systems.messages.shapes import TagChanged, TagPage

TELL_S: Final = 1.0
"""Seconds between two lines of progress."""
WORDS: Final = {"count": "have the tag", "cancel": "withdrawn", "move": "moved"}


def tagged(
    where: Target, topic: str, tag: str, verb: Literal["count", "cancel", "move"], to: str | None, as_json: bool
) -> int:
    """Carry out a job, and print its counts. Raises `UserError`."""
    at = 0 if to is None else instant("--to", to)
    first = TagPage(topic, checked_tag(tag), verb, at)

    async def work(_: Link, admin: Link) -> TagChanged:
        asked, sums, told = first, [0, 0, 0, 0], time.monotonic()
        while True:
            page = await admin.ask("tag-page", asked, TagChanged, timeout_s=60.0)
            counts = (page.looked, page.matching, page.done, page.late)
            sums = [total + count for total, count in zip(sums, counts, strict=True)]
            if not page.next:
                looked, matching, done, late = sums
                return TagChanged(looked, matching, done, late, page.until, "")
            if time.monotonic() - told >= TELL_S:
                told = time.monotonic()
                say(f"muster: looked at {sums[0]} messages: {sums[1] if verb == 'count' else sums[2]} {WORDS[verb]}")
            asked = TagPage(topic, tag, verb, at, page.until, page.next)

    found = ask(where, work)
    with common.verdict_after():
        if as_json:
            counts = {"looked": found.looked, "matching": found.matching}
            common.print_json(counts if verb == "count" else counts | {"done": found.done, "late": found.late})
        elif verb == "count":
            print(found.matching)
        else:
            late = f"; {found.late} fired, ended or changed before" if found.late else ""
            print(f"{found.done} of {found.matching} {WORDS[verb]}{late}")
    return 0
