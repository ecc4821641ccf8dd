"""The shapes of bodies and answers over HTTP, as JSON and in the description of the API.

Users are text, because they have 64 bits.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from muster_server.systems.likes.reach import FEED, FEED_NEWEST

USER = r"^(0|[1-9][0-9]{0,19})\Z"


class Liked(msgspec.Struct, frozen=True):
    """Whether a user likes an item, and its count."""

    item: str
    user: str
    likes: bool
    count: int


class Toggled(msgspec.Struct, frozen=True):
    """A durable change. `before`: whether the user liked the item before."""

    item: str
    user: str
    likes: bool
    before: bool
    count: int


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change of a batch."""

    item: Annotated[str, Meta(min_length=1, max_length=512)]
    user: Annotated[str, Meta(pattern=USER)]
    likes: bool = True


class FeedAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a page of a feed. `viewer`: the user who sees it; `newest`: number of newest likers of each item."""

    items: Annotated[list[Annotated[str, Meta(min_length=1, max_length=512)]], Meta(max_length=FEED)]
    viewer: Annotated[str, Meta(pattern=USER)] | None = None
    newest: Annotated[int, Meta(ge=0, le=FEED_NEWEST)] = 3


class FeedEntry(msgspec.Struct, frozen=True, gc=False):
    """One item of a page. `likes`: whether the viewer likes it; null without a viewer."""

    item: str
    count: int
    likes: bool | None
    newest: list[str]


class FeedPage(msgspec.Struct, frozen=True):
    """The items in the order of the request."""

    items: list[FeedEntry]


class Failure(msgspec.Struct, frozen=True):
    """The reason why a change of a batch was not made."""

    code: str
    detail: str
    retryable: bool


class BatchEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of a batch: whether the user liked the item before, or why it was not made."""

    before: bool | None = None
    error: Failure | None = None


class Batch(msgspec.Struct, frozen=True):
    """The results of a batch, in the same order."""

    done: int
    failed: int
    changes: list[BatchEntry]


class Rank(msgspec.Struct, frozen=True):
    """An item's rank among the items of a field; 0 is the top. Empty field: all items."""

    field: str
    rank: int
    of: int


class Shown(msgspec.Struct, frozen=True):
    """One item. `windows`: newer likes count more."""

    item: str
    count: int
    newest: list[str]
    ranks: list[Rank]
    windows: dict[str, float]


class Users(msgspec.Struct, frozen=True):
    """Users who like all of several items."""

    users: list[str]


class Likers(msgspec.Struct, frozen=True):
    """A page of users who like an item. `next`: the `after` of the next page."""

    users: list[str]
    next: str | None


class Items(msgspec.Struct, frozen=True):
    """A page of the items that a user likes, newest first. `at`: the second of each like since 1970; null: it was made
    before times were kept. `next`: the `after` of the next page."""

    user: str
    items: list[str]
    at: list[int | None]
    next: str | None


class Curve(msgspec.Struct, frozen=True):
    """An item's count over the last hour, since it was first looked at: `at` in seconds since 1970, a point each
    `every_s`."""

    item: str
    every_s: float
    at: list[float]
    count: list[int]


class Placed(msgspec.Struct, frozen=True):
    """An item of a ranking."""

    rank: int
    item: str
    score: float


class Top(msgspec.Struct, frozen=True):
    """A page of a ranking, best first. `next`: the `after` of the next page."""

    field: str
    window: str
    items: list[Placed]
    next: str | None
