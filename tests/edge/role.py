"""A real `muster up --with edge` for programs of SDKs, with tokens of two users."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster_server.plane.auth import mint
from muster_server.plane.trust import signing_secrets
from tests.edge.sdks import Given
from tests.faults.instance import Instance, configuration

SMALL: Final = "small"
HALL: Final = f"{SMALL}:hall"
RIGHTS: Final = ["read", "publish", "command", "members", "history"]


@dataclass(frozen=True)
class Role:
    """An edge that serves."""

    instance: Instance
    url: str

    def token(self, user: int, seconds: float = 3_600, **more: Any) -> str:
        """A token for a user with all rights in all rooms, or `more` of `mint`."""
        secret = signing_secrets(str(self.instance.folder.jwt_secret))[0]
        all_rights: dict[str, Any] = {"cap": [("*", RIGHTS)], "send": ["*"]}
        return mint(secret, user, [], time.time(), seconds, **all_rights | more)

    @property
    def given(self) -> Given:
        """For cases."""
        reader = self.token(9, cap=[("*", ["read"])], send=None)
        enters = self.token(7, rooms=[HALL])
        return Given(self.token(7), self.token(8), reader, "wrong", self.token(7, -60), SMALL, enters, HALL)


@contextlib.contextmanager
def role(path: Path, systems: str = "edge,presence", **sections: Mapping[str, Any]) -> Iterator[Role]:
    """Runs one to its end."""
    usual: dict[str, Mapping[str, Any]] = {
        "database": {"url": "none"},
        "probes": {"every_ms": 0},
        f"namespaces__{SMALL}": {"history_messages": 256},
    }
    instance = Instance(path, configuration(**usual | sections))
    with instance.running("--with", systems):
        status = json.loads(instance.ran("status", "--json").stdout)
        yield Role(instance, status["systems"]["edge"]["url"])
