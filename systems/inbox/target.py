"""The way into inboxes for delayed and transactional messages: the target `inbox:USER`.

Owns the form of such a message: an entry in JSON, or a text, which is an entry of the kind `message`. A message whose
answer was lost is put in again: its id makes that the same entry.
"""

from hashlib import blake2b
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from muster_server.control.cluster.places import Places
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, secret
from muster_server.plane.ways import NotTaken
from muster_server.systems.inbox.asking import Inboxes
from muster_server.systems.inbox.shapes import DATA_BYTES_MAX, ID, ROLE, Kind, New, Noted, Notify, Text

KIND_OF_TEXT: Final = "message"
ID_CHARS_MAX: Final = 128
JSON: Final = "application/json"


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry, as a message has it."""

    kind: Kind
    data: msgspec.Raw = msgspec.Raw(b"null")
    group: Text = ""
    actor: Text = ""
    id: Annotated[str, Meta(pattern=rf"^({ID})?\Z")] = ""
    """Instead of an id from the message: messages with the same one are one entry."""


class Target:
    """A `plane.ways.Way` whose places are users."""

    def __init__(self, inboxes: Inboxes) -> None:
        self._inboxes = inboxes

    async def put(self, place: str, id: str, body: bytes, kind: str) -> None:
        """Put an entry into the inbox of a user. Raises `NotTaken`."""
        user = int(place)
        if user >> 64:
            raise NotTaken(f"invalid user {place} (expected a number from 0 to 2^64-1)", lasting=True)
        new = entry(id, body, kind)
        try:
            (said,) = await self._inboxes.ask(Notify([user], new), tuple[Noted])
        except CallError as error:
            raise NotTaken(f"{error.code}: {error}", lasting=error.code == "question") from None
        if said.outcome == "conflict":
            raise NotTaken(f"the inbox of user {user} has another entry with the id {new.id}", lasting=True)

    async def close(self) -> None:
        """Close the connections."""
        await self._inboxes.close()


def entry(id: str, body: bytes, kind: str) -> New:
    """The entry of a message. Raises `NotTaken`, which lasts."""
    if kind.partition(";")[0].strip() != JSON:
        try:
            body = msgspec.json.encode({"text": body.decode()})
        except UnicodeDecodeError:
            raise NotTaken(
                "the message is not UTF-8: an entry is text, or JSON (application/json)", lasting=True
            ) from None
        said = Body(KIND_OF_TEXT, msgspec.Raw(body))
    else:
        try:
            said = msgspec.json.decode(body, type=Body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotTaken(
                f'invalid entry: {error} (expected for example {{"kind": "like", "data": …}})', lasting=True
            ) from None
    data = msgspec.json.format(bytes(said.data), indent=-1)
    if len(data) > DATA_BYTES_MAX:
        raise NotTaken(f"data of an entry too long: {len(data)} bytes (limit {DATA_BYTES_MAX})", lasting=True)
    return New(said.kind, data, said.group, said.actor, said.id or short(id))


def short(id: str) -> str:
    """An id that is too long, or has other characters, by its digest."""
    if len(id) <= ID_CHARS_MAX:
        return id
    return "message:" + blake2b(id.encode(), digest_size=24).hexdigest()


def made(spec: Spec, context: Context, folder: str) -> Target:
    """As `Into.way`. Raises `SpecError`."""
    return Target(Inboxes(Places(spec, context, folder).of(ROLE), key_of(secret(spec.cluster_secret_file, 32))))
