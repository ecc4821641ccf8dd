"""Durable logs that systems share: the interface, an embedded version and one over Kafka."""

from muster_server.plane.log.place import connect
from muster_server.plane.log.words import (
    BATCH_BYTES_MAX,
    Batch,
    Beyond,
    Damaged,
    Failed,
    Log,
    LogError,
    Logs,
    TooLarge,
    Trimmed,
)

__all__ = [
    "BATCH_BYTES_MAX",
    "Batch",
    "Beyond",
    "Damaged",
    "Failed",
    "Log",
    "LogError",
    "Logs",
    "TooLarge",
    "Trimmed",
    "connect",
]
