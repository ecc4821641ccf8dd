"""The logs that a configuration names. Knows which versions exist, and nothing of how they work."""

import re
from pathlib import Path
from typing import Final

from muster_server.plane.log.words import Logs

FORM: Final = "kafka://HOST:PORT[,HOST:PORT…][/PREFIX]"
URL: Final = r"kafka://([^/@,: ]+:\d+(?:,[^/@,: ]+:\d+)*)(?:/([A-Za-z0-9._-]{1,100}))?"


def parse(url: str) -> tuple[str, str]:
    """The servers and the topics' prefix of a URL. Raises `ValueError`."""
    found = re.fullmatch(URL, url)
    if found is None:
        raise ValueError(f"invalid log {url!r} (use {FORM})")
    return found[1], found[2] or "muster"


def connect(url: str, folder: Path, *, partitions: int = 1, replicas: int = 1) -> Logs:
    """Return the logs at a URL as in `FORM`, or in `folder` if the URL is empty.

    `partitions` is the fixed number of partitions of each log, `replicas` the number of its copies: both apply to
    topics that Kafka does not have yet. Raises `ValueError` for another URL.
    """
    if not url:
        from muster_server.plane.log.embedded import EmbeddedLogs  # a command that reads a URL needs no event loop

        return EmbeddedLogs(folder)
    from muster_server.plane.log.kafka import KafkaLogs  # its library is an optional extra

    servers, prefix = parse(url)
    return KafkaLogs(servers, prefix, partitions=partitions, replicas=replicas)
