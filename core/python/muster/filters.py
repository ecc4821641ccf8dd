"""Filters of a membership: the messages of a room that a client wants. Nothing else leaves its gateway."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from .errors import Invalid


@final
@dataclass(frozen=True, slots=True)
class Filter:
    """The messages of a room that a membership gets: `client.join("trades", filter=Filter({"pair": ["EUR", "USD"]}))`.

    `equal`: a text or several by name of a header. A message must have each of these headers, with one of its texts. At
    most 4 headers with 16 texts each, and 512 bytes with 2 more for each name and text. `one_in`: a sample of
    about one message in as many, 1 to 1,000,000, the same for all who ask for it. Both together: of the sample those
    that match. `at_most_per_s`: of these, at most as many a second, 1 to 1,000: the newest each time, and the last one
    in the end.

    Raises `Invalid` if a value has another type; a filter beyond a limit, or one that lets everything through, is
    refused by the join.
    """

    equal: Mapping[str, str | Iterable[str]] = field(default_factory=dict)
    one_in: int = 1
    at_most_per_s: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.equal, Mapping):
            raise Invalid(f"invalid filter {self.equal!r} (expected texts by name of a header)")
        wanted = {name: _texts(name, values) for name, values in self.equal.items()}
        object.__setattr__(self, "equal", wanted)
        if not isinstance(self.one_in, int) or isinstance(self.one_in, bool) or not 1 <= self.one_in <= 1_000_000:
            raise Invalid(f"invalid one_in {self.one_in!r} (expected 1 to 1,000,000)")
        rate = self.at_most_per_s
        if rate is not None and (not isinstance(rate, int) or isinstance(rate, bool) or not 1 <= rate <= 1_000):
            raise Invalid(f"invalid at_most_per_s {rate!r} (expected 1 to 1,000, or None)")

    def wanted(self) -> list[tuple[str, list[str]]]:
        """Its headers with their texts, as the engine takes them."""
        return [(name, list(values)) for name, values in self.equal.items()]


def _texts(name: object, values: object) -> tuple[str, ...]:
    if not isinstance(name, str):
        raise Invalid(f"invalid header {name!r} of a filter (expected a text)")
    if isinstance(values, str):
        return (values,)
    texts = tuple(values) if isinstance(values, Iterable) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Invalid(f"invalid values {values!r} of header {name} of a filter (expected a text, or several)")
    return texts
