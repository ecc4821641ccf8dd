"""The sizes of what a client sends. Loads nothing, so that programs can check a size without a client."""

from typing import Final

MESSAGE_BYTES_MAX: Final = 65_536
COMMAND_BYTES_MAX: Final = 800
SEND_BYTES_MAX: Final = 960
"""A message to a user."""
REQUEST_BYTES_MAX: Final = 48_000
"""A request or its reply: as base64 in JSON it is a message."""
