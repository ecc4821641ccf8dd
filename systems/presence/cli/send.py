"""`muster send`: a message to one user. It goes through the client library, as any program's does."""

import asyncio
import base64
import os
import re
import sys
from collections.abc import Sequence
from typing import Final

import muster
from muster.sizes import SEND_BYTES_MAX
from muster_server.control.errors import FAILURE, TRY_LATER, USAGE, UserError
from muster_server.control.terminal.common import print_json, verdict_after
from muster_server.control.terminal.found import Target, connected
from muster_server.control.terminal.users import user_of
from muster_server.control.terminal.words import tell
from muster_server.systems.presence.cli.reach import named_json, texts_among
from muster_server.systems.presence.devices import DEVICE, DEVICE_RULE

ORDER: Final = ("delivered", "ended", "expired", "unknown", "not_online")


async def send(
    where: Target, user: str, device: str | None, expires: float, as_json: bool, *, is_base64: bool = False
) -> int:
    """Send stdin. Raises `UserError`."""
    number = user_of(where, user)
    check_device(device)
    data = await asyncio.to_thread(_stdin, is_base64)
    async with connected(where, reads=False) as client:
        results = await client.send(number, data, device=device, expires=expires)
    return show(number, user, results, as_json)


def show(number: int, user: str, results: Sequence[muster.DeviceResult], as_json: bool) -> int:
    """Print the outcomes of one user's devices, and return the exit code."""
    with verdict_after():
        if as_json:
            named = named_json(number, texts_among([(number, user)]))
            print_json(named | {"devices": [document(each) for each in results]}, line=True)
        else:
            tell(words(results))
    return code(results)


def check_device(device: str | None) -> None:
    """Raises `UserError` for an invalid name of a device."""
    if device is not None and not re.fullmatch(DEVICE, device):
        raise UserError(f"--device: invalid name of a device {device!r:.60} (expected {DEVICE_RULE})", USAGE)


def _stdin(is_base64: bool) -> bytes:
    """All of stdin but the end of its last line. Raises `UserError`."""
    if sys.stdin is None:
        raise UserError("stdin is closed; the message is read from it: echo hello | muster send USER", USAGE)
    data = b""
    most = 2 * SEND_BYTES_MAX if is_base64 else SEND_BYTES_MAX
    while len(data) <= most + 1 and (read := os.read(0, most + 2)):
        data += read
    data = data.removesuffix(b"\n")
    if is_base64:
        try:
            data = base64.b64decode(b"".join(data.split()), validate=True)
        except ValueError:
            raise UserError("stdin is not base64; nothing was sent", USAGE) from None
    if len(data) > SEND_BYTES_MAX:
        raise UserError(f"a message to a user has at most {SEND_BYTES_MAX} bytes; nothing was sent", USAGE)
    return data


def words(results: Sequence[muster.DeviceResult]) -> str:
    """`delivered: phone, laptop`, `not online: tv`, or `expired`; parts with `; ` between."""
    parts = []
    for outcome in ORDER:
        devices = [each.device for each in results if each.outcome == outcome]
        named = ", ".join(sorted(each for each in devices if each is not None))
        text = outcome.replace("_", " ")
        if devices:
            further = " and further devices" if named and None in devices else ""
            nobody = outcome == "not_online" and len(devices) == len(results)
            parts.append(f"{text}: {named}{further}" if named and not nobody else text)
    return "; ".join(parts)


def code(results: Sequence[muster.DeviceResult]) -> int:
    """The exit code of these outcomes."""
    outcomes = {each.outcome for each in results}
    if outcomes & {"expired", "unknown"}:
        return TRY_LATER
    return 0 if outcomes & {"delivered", "ended"} else FAILURE


def document(result: muster.DeviceResult) -> dict[str, str | None]:
    """An outcome in JSON form."""
    return {"device": result.device, "outcome": result.outcome}
