"""A user's settings: which kinds are kept, pushed and mailed, and when a mail is due. Owns these rules alone."""

from collections.abc import Mapping
from typing import Final

import msgspec

from muster_server.systems.inbox.records import Limits
from muster_server.systems.inbox.shapes import Choice, Mail

DAY_MS: Final = 86_400_000
NONE: Final = Choice()
_DECODER: Final = msgspec.json.Decoder(dict[str, Choice])


class Preferences:
    """The settings of one user, with the defaults of the configuration behind them."""

    def __init__(self, kinds: Mapping[str, Choice], limits: Limits) -> None:
        self.kinds, self._limits = kinds, limits

    def keeps(self, kind: str) -> bool:
        """Whether entries of this kind are kept."""
        return kind in self._limits.required or self.kinds.get(kind, NONE).inbox is not False

    def pushes(self, kind: str) -> bool:
        """Whether devices are told of entries of this kind."""
        return self.kinds.get(kind, NONE).push is not False

    def mail(self, kind: str, now: int) -> tuple[Mail, int | None]:
        """When a mail for a new entry of this kind is due; None: never."""
        way = self.kinds.get(kind, NONE).mail or self._limits.mail
        if not self._limits.mails or way == "never":
            return "never", None
        if way == "at_once":
            return way, now
        if way == "unless_read":
            return way, now + self._limits.mail_wait_ms
        midnight = now - now % DAY_MS
        due = midnight + self._limits.daily_ms
        return way, due if due > now else due + DAY_MS

    @property
    def hidden(self) -> list[str]:
        """Kinds that are not kept."""
        return sorted(kind for kind in self.kinds if not self.keeps(kind))


def parsed(text: str | None) -> dict[str, Choice]:
    """Settings as the store has them."""
    return _DECODER.decode(text) if text else {}


def written(kinds: Mapping[str, Choice]) -> str | None:
    """The same for the store."""
    return msgspec.json.encode(kinds).decode() if kinds else None
