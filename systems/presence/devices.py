"""The names of devices."""

from typing import Final

DEVICE: Final = r"[!-+\--~]{1,23}"
DEVICE_RULE: Final = "1 to 23 printable ASCII characters without a blank and a comma"
