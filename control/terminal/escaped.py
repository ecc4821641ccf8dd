"""A console that escapes untrusted text. Imports `rich`, so only commands that show tables import this file."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from muster_server.control.host.shown import shown


class Escaped(Console):
    """Escapes texts before they are measured, and everything else when it is drawn."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, for example a cell of a table."""
        return super().render_str(shown(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render the segments of any object."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))
