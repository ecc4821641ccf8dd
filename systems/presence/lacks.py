"""The reasons why a node of presence cannot run."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

STORES: Final = "redis://redis-1:6379/0,redis://redis-2:6379/0"
"""On Kubernetes: the operator's stores, one host name for each site."""
MISSING: Final = "presence needs the library of Redis; to mend: pip install 'muster-server[presence]'"
MISSING_KAFKA: Final = "presence.log needs the library of Kafka; to mend: pip install 'muster-server[kafka]'"
MISSING_STORE: Final = "presence.redis: missing; nodes of muster serve need a store: redis://HOST:PORT/DB"


def lacks(section: Callable[[str], Any]) -> str | None:
    """What the configuration or the installation lacks for nodes that use the store; None: nothing."""
    presence = section("presence")
    if not presence.redis:
        return MISSING_STORE
    if presence.log and find_spec("confluent_kafka") is None:
        return MISSING_KAFKA
    return None if find_spec("redis") else MISSING
