"""The descriptor of the role `likes`."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from plane.kind import Pods, RoleKind, numbers
from plane.likes.options import LikesOptions, LikesSettings, settle

MISSING: Final = "likes.redis needs the library of Redis; to mend: pip install 'muster-server[likes]'"


MISSING_KAFKA: Final = "likes.log needs the library of Kafka; to mend: pip install 'muster-server[kafka]'"


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why it cannot be served."""
    if section("likes").log and find_spec("confluent_kafka") is None:
        return MISSING_KAFKA
    return MISSING if section("likes").redis and find_spec("redis") is None else None


LIKES: Final = RoleKind(
    name="likes",
    process="edge",
    numbers=numbers(2),
    about="keeps likes, counts and rankings, for any Redis client",
    options=LikesOptions,
    settings=LikesSettings,
    settle=settle,
    build="plane.likes.service:build",
    secrets=frozenset({"token"}),
    registers="serving",
    scheme="redis",
    ends=8,
    row=50,
    pods=Pods(port=7379, replicas=1, memory="512Mi", memory_max="4Gi", disk="16Gi"),
    received="muster_likes_commands_total",
    carried="muster_likes_commands_total",
    check=lacks,
)
