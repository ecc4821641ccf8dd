"""`python -m muster.cache show|drop|watch`, and `muster cache` of the server: show a cache, drop keys, watch drops.

Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failure, 2 usage, 69 the Redis does not answer.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.exceptions import RedisError

from ..errors import Invalid, MusterError, Unavailable
from ..redis.connections import cut
from ..redis.where import checked as checked_url
from .cache import KEYS_MAX
from .entry import Found
from .far import InRedis
from .functions import checked
from .hearing import read

USAGE, UNAVAILABLE = 2, 69
REDIS: Final = "redis://127.0.0.1:6379/0"
PASSWORD: Final = "MUSTER_CACHE_PASSWORD"
SHOWN_BYTES: Final = 200
HOLD_S: Final = 1.0
SECONDS: Final = 5.0


def main(words: Sequence[str] | None = None, prog: str = "python -m muster.cache") -> int:
    """Run one subcommand, and return its exit code."""
    try:
        chosen = _parser(prog).parse_args(words)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        return asyncio.run(_run(chosen))
    except Unavailable as error:
        return _fail(str(error), UNAVAILABLE)
    except (MusterError, ValueError, OSError) as error:
        return _fail(str(error), USAGE)
    except KeyboardInterrupt:
        return 0 if chosen.word == "watch" else 130


def _fail(words: str, code: int) -> int:
    print(f"muster: {words}", file=sys.stderr)
    return code


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Show a cache, drop keys, and watch drops (docs/cache.md).")
    words = parser.add_subparsers(dest="word", required=True, metavar="show|drop|watch")
    show = words.add_parser(
        "show",
        help="Show what level 2 stores for these keys; without keys, show its Redis.",
        epilog=f"Example: {prog} show share:7",
    )
    show.add_argument("keys", nargs="*", metavar="KEY")
    drop = words.add_parser("drop", help="Drop keys everywhere.", epilog=f"Example: {prog} drop share:7 front")
    drop.add_argument("keys", nargs="+", metavar="KEY")
    watch = words.add_parser("watch", help="Print each drop, until Ctrl-C.", epilog=f"Example: {prog} watch --count 10")
    watch.add_argument("--count", type=int, default=0, help="Stop after N drops; 0: never [0].")
    for each in (show, drop, watch):
        each.add_argument("--redis", default=REDIS, metavar="URL", help=f"URL of the cache's Redis [{REDIS}].")
        each.add_argument("--name", default="main", help="Name of the cache [main].")
        each.add_argument(
            "--password-file",
            type=Path,
            metavar="FILE",
            help=f"File with the password of the Redis, one line; else ${PASSWORD}.",
        )
        each.add_argument("--json", action="store_true", help="Print JSON, one object per line.")
    return parser


async def _run(chosen: argparse.Namespace) -> int:
    password = os.environ.get(PASSWORD, "")
    if chosen.password_file is not None:
        password = chosen.password_file.read_text().strip()
    where = checked_url(chosen.redis)
    far = InRedis(where, password, checked(chosen.name), SECONDS, tells=True, on_life=lambda: None)
    try:
        if chosen.word == "show":
            return await _show(far, chosen)
        if chosen.word == "drop":
            if len(chosen.keys) > KEYS_MAX:
                raise Invalid(f"too many keys in one drop (limit {KEYS_MAX})")
            await far.change([checked(key) for key in chosen.keys], "", 0.0, HOLD_S, "")
            return 0
        return await _watch(far, chosen)
    finally:
        await far.close()


async def _show(far: InRedis, chosen: argparse.Namespace) -> int:
    if not chosen.keys:
        about = await far.about()
        print(json.dumps(about) if chosen.json else "\n".join(f"{name}: {value}" for name, value in about.items()))
        return 0
    for key in chosen.keys:
        found, state = await far.get(checked(key)), await far.state(key)
        shown = {"key": key, **_shown(found), **state}
        print(json.dumps(shown, ensure_ascii=False) if chosen.json else _line(shown))
    return 0


def _shown(found: Found | None) -> dict[str, Any]:
    if found is None:
        return {"entry": "none"}
    kind = "absent" if found.payload is None else "fresh" if found.fresh_s > 0 else "stale"
    about = {"entry": kind, "fresh_s": round(found.fresh_s, 1), "ends_s": round(found.left_s, 1)}
    if found.payload is None:
        return about
    value = found.payload[:SHOWN_BYTES].decode(errors="replace")
    return about | {"load_ms": round(found.load_s * 1e3), "bytes": len(found.payload), "value": value}


def _line(shown: dict[str, Any]) -> str:
    """Format as one line; control characters in values are removed."""
    said = f"{shown['key']}: {shown['entry']}"
    if shown["entry"] != "none":
        said += f", fresh for {max(0.0, shown['fresh_s'])} s, ends in {shown['ends_s']} s"
    if "bytes" in shown:
        said += f", {shown['bytes']} bytes, loaded in {shown['load_ms']} ms"
    if shown["loading"]:
        said += ", loading"
    if shown["marks"]:
        said += f", {shown['marks']} writers"
    if "value" in shown:
        said += f": {json.dumps(shown['value'], ensure_ascii=False)}"
    return said


async def _watch(far: InRedis, chosen: argparse.Namespace) -> int:
    connection = await far.apart()
    left = chosen.count
    try:
        await connection.send_command("SUBSCRIBE", far.channel.encode())
        while True:
            said = await connection.read_response(timeout=3_600.0, push_request=True)
            if said is None or said[0] != b"message":
                continue
            try:
                writer, keys, at_ms = read(said[2])
            except ValueError:
                shown, line = {"wrong": said[2].decode(errors="replace")}, f"no drop: {said[2]!r}"
            else:
                shown = {"keys": keys, "at_ms": at_ms, "late_ms": round(far.age_ms(at_ms), 1), "writer": writer}
                line = f"{' '.join(keys)}" + (f" (writer {writer})" if writer else "")
            print(json.dumps(shown, ensure_ascii=False) if chosen.json else line, flush=True)
            left -= 1
            if left == 0:
                return 0
    except RedisError as error:
        raise Unavailable(f"the connection to the Redis ended: {error}") from error
    finally:
        await cut(connection)


if __name__ == "__main__":
    sys.exit(main())
