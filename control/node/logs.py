"""Logs: one JSON object per line on stderr, or text for people. Never one line per packet."""

import contextlib
import logging
import os
import select
import stat
import sys
from typing import Any, Final, Literal

import structlog

from muster_server.control.host.shown import shown, shown_json

LINE_BYTES_MAX: Final = 4_096
"""Bytes that a pipe accepts in one atomic write, besides other writers: PIPE_BUF of pipe(7)."""
CUT: Final = " […] "
"""Marks the cut in a shortened text."""
TEXT_CHARS_MIN: Final = 32
"""Texts of a document up to this length are not shortened."""


class _Stderr:
    """A stderr that never blocks: lines that a full disk, a closed pipe or a stopped reader does not accept are lost.

    All processes of an instance write to the same file or pipe, so a line is one write whenever possible.
    """

    def __init__(self) -> None:
        self.lost = 0

    def write(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            at_once = len(data) if _is_file() else LINE_BYTES_MAX
            while data and select.select((), (2,), (), 0)[1]:
                data = data[os.write(2, data[:at_once]) :]
        self.lost += bool(data)

    def flush(self) -> None:
        """Nothing is buffered."""


_STDERR: Final = _Stderr()


class _Least:
    """The lowest level that is written, also for existing loggers."""

    def __init__(self) -> None:
        self.number = logging.INFO

    def __call__(self, logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if structlog.processors.NAME_TO_LEVEL[method] < self.number:
            raise structlog.DropEvent
        return event


_LEAST: Final = _Least()


class _Standard(logging.Handler):
    """Turns log records of libraries and the loop into lines like all others, which never block.

    Otherwise `logging` would write text to stderr and wait for its reader.
    """

    def __init__(self, log: structlog.typing.FilteringBoundLogger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; an unknown level counts as the next lower known one."""
        try:
            text = record.getMessage()
        except Exception:  # formatting its arguments may raise anything
            text = str(record.msg)
        level = min(record.levelno // 10 * 10, logging.CRITICAL)
        self._log.log(level, text, logger=record.name, exc_info=record.exc_info)


def _escaped(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape untrusted texts for a terminal."""
    return {name: shown(value) if isinstance(value, str) else value for name, value in event.items()}


_RENDER: Final = structlog.processors.JSONRenderer()


def _document(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    """One line of JSON that fits an atomic write to a pipe: the longest texts are shortened in the middle until it
    does."""
    while True:
        line = shown_json(str(_RENDER(logger, method, event)).encode())
        if len(line) < LINE_BYTES_MAX or _is_file():
            return line.decode()
        longest = max(event, key=lambda name: len(str(event[name])))
        text = str(event[longest])
        if len(text) <= TEXT_CHARS_MIN:
            return line.decode()
        event[longest] = text[: len(text) // 4] + CUT + text[-len(text) // 4 :]


def _is_file() -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISREG(os.fstat(2).st_mode)
    return False


def level_of(name: str) -> int:
    """A level as a number."""
    return logging.getLevelNamesMapping()[name.upper()]


def set_level(name: str) -> None:
    """Write from this level on, from now on."""
    _LEAST.number = level_of(name)


def lost() -> int:
    """Number of lines that were lost, or only partly written."""
    return _STDERR.lost


def configure(level: str, style: Literal["json", "text"], **bound: Any) -> structlog.typing.FilteringBoundLogger:
    """Set up logging for this process and return the root logger."""
    last: tuple[Any, ...] = (
        (_document,) if style == "json" else (_escaped, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
    )
    set_level(level)
    structlog.configure(
        processors=[
            _LEAST,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=_STDERR),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger(**bound)
    root = logging.getLogger()
    for before in [each for each in root.handlers if isinstance(each, _Standard)]:
        root.removeHandler(before)
    root.addHandler(_Standard(log))
    return log
