"""An agent of `muster.fleet` that measures by these kinds, targets and limits."""

import functools
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..fleet import Agent
from .kinds import Kind
from .reach import Reach

AT_ONCE: Final = 16
PER_MINUTE: Final = 600
TIMEOUT_S: Final = 20.0
"""Below `fleet.result_ms`, 30 s: a measurement that takes longer ends as a failure, and not as silence."""


def made(
    url: str,
    name: str,
    password: str,
    attributes: Mapping[str, Sequence[str]],
    kinds: Mapping[str, Kind],
    reach: Reach,
    *,
    at_once: int = AT_ONCE,
    per_minute: int = PER_MINUTE,
    timeout_s: float = TIMEOUT_S,
    spread_s: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> Agent:
    """The agent; see `muster.fleet.Agent` for the arguments and errors."""
    agent = Agent(
        url,
        name,
        password,
        attributes,
        spread_s=spread_s,
        tls=tls,
        at_once=at_once,
        per_minute=per_minute,
        timeout_s=timeout_s,
    )
    for kind, do in kinds.items():
        agent.task(kind)(functools.partial(_measured, do, reach))
    return agent


async def _measured(do: Kind, reach: Reach, target: str, options: dict[str, Any]) -> Any:
    return await do(target, options, reach)
