"""Logs: one JSON object per line on stderr, or text for eyes. Never one per packet."""

import logging
import sys
from typing import Any, Literal

import structlog


def configure(level: str, style: Literal["json", "text"], **bound: Any) -> structlog.typing.FilteringBoundLogger:
    """Set up logging for this process and return the logger that everything else is derived from."""
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger(**bound)
    return log
