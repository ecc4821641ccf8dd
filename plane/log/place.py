"""The place of logs that a configuration names. Knows which versions there are, and nothing of how they work."""

from pathlib import Path

from plane.log.embedded import EmbeddedLogs
from plane.log.words import Logs


def connect(url: str, folder: Path, *, partitions: int = 1, replicas: int = 1) -> Logs:
    """Find the place of a URL: `kafka://HOST:PORT[,HOST:PORT…][/PREFIX]`, or empty for `folder`.

    `partitions` is the fixed number of partitions of each log, `replicas` the number of its copies: both for topics
    that Kafka does not have yet. Raises `ValueError` for another URL.
    """
    if not url:
        return EmbeddedLogs(folder)
    from plane.log.kafka import KafkaLogs, parse  # its library is an extra

    servers, prefix = parse(url)
    return KafkaLogs(servers, prefix, partitions=partitions, replicas=replicas)
