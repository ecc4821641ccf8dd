"""The options of an order: each has a name, a range and a default. A wrong one is an error that names what is right."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import MusterError


class BadOption(MusterError):
    """An order has an option that its kind does not know, or a wrong value of one."""

    code = "bad_option"


class Options:
    """Takes the options of one order one after the other; `end` refuses those that are left."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)
        self._known: list[str] = []

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number from `least` to `most`. Raises `BadOption`."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadOption(f"{name}: invalid value {value!r:.40} (expected a whole number from {least} to {most})")
        return value

    def one_of(self, name: str, default: Any, known: Sequence[Any]) -> Any:
        """A value of these. Raises `BadOption`."""
        value = self._take(name, default)
        if not any(type(value) is type(each) and value == each for each in known):
            raise BadOption(f"{name}: unknown value {value!r:.40} (expected {', '.join(map(str, known))})")
        return value

    def text(self, name: str, default: str, most: int = 253) -> str:
        """A text of at most `most` characters. Raises `BadOption`."""
        value = self._take(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise BadOption(f"{name}: invalid value {value!r:.40} (expected a text of at most {most} characters)")
        return value

    def yes(self, name: str, default: bool) -> bool:
        """True or false. Raises `BadOption`."""
        return bool(self.one_of(name, default, (True, False)))

    def family(self) -> int:
        """The option `af`: 4, 6, or 0 for either. Raises `BadOption`."""
        return int(self.one_of("af", 0, (0, 4, 6)))

    def end(self) -> None:
        """Refuse what no one took. Raises `BadOption`."""
        if self._given:
            raise BadOption(f"unknown option {min(self._given)!r:.40} (known: {', '.join(sorted(self._known))})")

    def _take(self, name: str, default: Any) -> Any:
        self._known.append(name)
        return self._given.pop(name, default)
