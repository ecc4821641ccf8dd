"""`muster token USER`: a token for one user, signed with the cluster's secret as your own backend would sign it."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, get_args

from muster_server import _engines
from muster_server.control.cluster import specs
from muster_server.control.config import load as config
from muster_server.control.errors import USAGE, UserError
from muster_server.plane.auth import ROOMS_MAX, VALID_S_MAX, Patterns, Words, mint
from muster_server.plane.kind import Right
from muster_server.plane.systems import actions
from muster_server.plane.users import check_recipient, check_user

CREDENTIAL_BYTES_MAX: Final = 1_000
"""Limit of a credential in bytes: it must fit one record of a session."""
DEVICE: Final = r"[!-+\--~]{1,23}"
"""Pattern of a device's name; its kind precedes the first colon."""
UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The token options of the command."""

    user: str
    rights: str
    expires: str
    cap: Sequence[str] = ()
    """Rights by pattern of rooms, which replace `rights`."""
    token_id: str | None = None
    device: str | None = None
    send: Sequence[str] = ()
    """Patterns of users to whom it may send."""
    take_over: bool = False
    """The device may come although another one has just replaced it."""
    rooms: Sequence[str] = ()
    """Rooms that an edge subscribes the client to."""


def show(config_file: Path | None, wanted: Wanted) -> int:
    """Print a token. Raises `UserError`."""
    print(made(config_file, wanted))
    return 0


def made(config_file: Path | None, wanted: Wanted) -> str:
    """Make a token. Raises `UserError`."""
    try:
        check_user(wanted.user)
    except ValueError as error:
        raise UserError(f"USER: {error}", USAGE) from None
    device = wanted.device
    if device is not None and not re.fullmatch(DEVICE, device):
        raise UserError(
            f"--device: invalid name {device!r} (expected 1 to 23 printable characters without space or comma)", USAGE
        )
    if wanted.take_over and device is None:
        raise UserError("--take-over needs --device", USAGE)
    allowed, seconds, patterns = _rights(wanted.rights), _seconds(wanted.expires), _patterns(wanted.cap)
    to = _recipients(wanted.send)
    _check_rooms(wanted.rooms)
    secret = specs.signing_secret(config.load(config_file).config)
    minted = mint(
        secret,
        wanted.user,
        allowed,
        time.time(),
        seconds,
        patterns,
        wanted.token_id,
        device,
        to,
        wanted.take_over,
        wanted.rooms,
    )
    if len(minted) > CREDENTIAL_BYTES_MAX:
        raise UserError(
            f"--cap, --send, --room: the token is too long: {len(minted)} bytes (limit {CREDENTIAL_BYTES_MAX});"
            " use fewer patterns or rooms",
            USAGE,
        )
    return minted


def _patterns(cap: Sequence[str]) -> Patterns | None:
    patterns = []
    for each in cap:
        pattern, _, text = each.rpartition("=")
        words = text.split(",") if text else []
        if not pattern:
            raise UserError(
                f"--cap: invalid value {each!r} (expected ROOMS=WORDS, for example 'sports:*=read,publish')", USAGE
            )
        known = [*_engines.RIGHTS, *(action.word for action in actions().values() if action.word)]
        if unknown := [word for word in words if word not in known]:
            raise UserError(f"--cap: {unknown[0]!r} is not one of {', '.join(known)}", USAGE)
        try:
            _engines.Grant([(pattern, words)])
        except ValueError as error:
            raise UserError(f"--cap: {error}", USAGE) from None
        patterns.append((pattern, words))
    return patterns or None


def _check_rooms(rooms: Sequence[str]) -> None:
    if len(rooms) > ROOMS_MAX:
        raise UserError(f"--room: {len(rooms)} rooms are too many (limit {ROOMS_MAX})", USAGE)
    try:
        for room in rooms:
            _engines.Grant([]).words(room)
    except ValueError as error:
        raise UserError(f"--room: {error}", USAGE) from None


def _recipients(send: Sequence[str]) -> Words | None:
    patterns = [pattern for each in send for pattern in each.split(",")]
    try:
        for pattern in patterns:
            check_recipient(pattern)
    except ValueError as error:
        raise UserError(f"--send: {error}", USAGE) from None
    return patterns or None


def _rights(text: str) -> list[Right]:
    words, known = text.split(","), get_args(Right)
    if unknown := [word for word in words if word not in known]:
        raise UserError(f"--rights: {unknown[0]!r} is not one of {', '.join(known)}", USAGE)
    return [cast(Right, word) for word in known if word in words]


def _seconds(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < seconds <= VALID_S_MAX:
        raise UserError(
            f"--expires: invalid time {text!r} (expected 1s to 366d, for example 90s, 15m, 1h or 7d)", USAGE
        )
    return seconds
