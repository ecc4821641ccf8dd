"""A status: what a user says of itself, as text and a mode.

Owns the rules of a status: which of two is newer, when it turns away and when it ends, and what others see of it. Must not
know where it is stored. Times are in ms since 1970, by the clock of a store.
"""

import unicodedata
from typing import Annotated, Final, Literal, get_args

import msgspec

Mode = Literal["available", "away", "dnd", "invisible"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
TEXT_BYTES_MAX: Final = 256
DAYS_MAX: Final = 366
END_S_MAX: Final = DAYS_MAX * 86_400
"""A status without an end, or with a later one, ends after this time: a user that never comes back takes no space."""
AWAY_S_MAX: Final = 86_400
HIDDEN: Final = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that no text may have: those that end a line or have no meaning. Joiners of emojis may be in
it."""
SITES: Final = 8
"""More than there are sites: a version has the site in its last digits, so that two sites never give the same one."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A status as it was set. It does not change; what it means does, with time (`shown`)."""

    version: int
    """Only a greater one replaces it (I-2)."""
    mode: Mode
    text: str = ""
    at: int
    """Since when the user has this mode."""
    away_at: int = 0
    """An available user is away from then on; 0: never."""
    until: int
    """Its end."""
    ends: bool = False
    """Return whether the user named the end."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a user at one moment; times in ms since 1970."""

    mode: Mode
    text: str
    at: int
    """Since when the user has this mode."""
    until: int | None
    """The end that the user named; null: none."""


class NewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A status to be set."""

    mode: Mode = "available"
    text: str = ""
    away_ms: Annotated[int, msgspec.Meta(ge=0, le=AWAY_S_MAX * 1_000)] = 0
    """Time without another status after which an available user is away; 0: never."""
    end_ms: Annotated[int, msgspec.Meta(ge=0, le=END_S_MAX * 1_000)] = 0
    """Time after which the status ends; 0: as late as possible."""


class StatusWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A status as its user sends it. An empty document takes the status back."""

    mode: Mode = "available"
    text: str = ""
    """At most 256 bytes of UTF-8, without line breaks and control characters."""
    away_after: Annotated[float, msgspec.Meta(ge=0, le=AWAY_S_MAX)] = 0
    """Seconds without another status after which an available user is away; 0: never."""
    expires: Annotated[float, msgspec.Meta(ge=0, le=END_S_MAX)] = 0
    """Seconds until the status ends; 0: it stays, at most 366 days."""

    def checked(self) -> NewStatus:
        """The status to be set. Raises `ValueError` for a text that no status may have."""
        check_text(self.text)
        away_ms, end_ms = round(self.away_after * 1_000), round(self.expires * 1_000)
        return NewStatus(mode=self.mode, text=self.text, away_ms=away_ms, end_ms=end_ms)


class StatusNow(msgspec.Struct, frozen=True):
    """The status of a user as it stands now; null: none."""

    status: Status | None


def check_text(text: str) -> None:
    """Raises `ValueError` for a text that no status may have."""
    if (length := len(text.encode(errors="replace"))) > TEXT_BYTES_MAX:
        raise ValueError(f"text: {length} bytes are too many (limit {TEXT_BYTES_MAX})")
    if any(unicodedata.category(letter) in HIDDEN for letter in text):
        raise ValueError("text: a status has no line breaks and no control characters")


def shown(record: Record | None, now_ms: int) -> Status | None:
    """The current meaning of a record; None: nothing. Ended, or available without a text."""
    if record is None or now_ms >= record.until:
        return None
    turned = record.mode == "available" and 0 < record.away_at <= now_ms
    mode: Mode = "away" if turned else record.mode
    if mode == "available" and not record.text:
        return None
    at = record.away_at if turned else record.at
    return Status(mode=mode, text=record.text, at=at, until=record.until if record.ends else None)


def others_see(status: Status | None) -> Status | None:
    """The view of other users. They see nothing of an invisible one: a text with its time would tell that the user is
    there."""
    return None if status is not None and status.mode == "invisible" else status


def record_of(new: NewStatus, before: Record | None, now_ms: int, site: int) -> Record:
    """The record of a status that is set now."""
    version = now_ms * SITES + site
    if before is not None and before.version >= version:  # another site's clock is ahead
        version = (before.version // SITES + 1) * SITES + site
    same = before is not None and now_ms < before.until and before.mode == new.mode
    empty = new.mode == "available" and not new.text and not new.away_ms
    return Record(
        version=version,
        mode=new.mode,
        text=new.text,
        at=before.at if before is not None and same else now_ms,
        away_at=now_ms + new.away_ms if new.away_ms and new.mode == "available" else 0,
        until=now_ms if empty else now_ms + (new.end_ms or END_S_MAX * 1_000),
        ends=bool(new.end_ms),
    )
