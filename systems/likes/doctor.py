"""The checks of likes: the file system of their log, and the lag of the database."""

import os
from pathlib import Path
from typing import Final

from muster_server.control.cluster.instance import Record, folder
from muster_server.control.config.options import Config
from muster_server.control.doctor.finding import Finding, fail, mib, ok, warn
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.systems.likes.options import LikesOptions

CHECK: Final = "likes"
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
SEGMENTS: Final = 4
"""Limit of files that the log needs besides its records."""
PASSES: Final = 3
"""Limit of missed passes of the write-behind."""


def examined(config: Config, record: Record | None) -> list[Finding]:
    """All findings."""
    likes: LikesOptions = config.section("likes")
    place = Path(likes.folder) if likes.folder else folder(config).path / "likes"
    found = [_place(place, likes, Path("/proc/self/mounts").read_text(encoding="utf-8"))]
    for process in record.of("likes") if record is not None else []:
        try:
            _, said = common.get(process, "/api/v1/status")
        except UserError as error:
            found.append(warn(CHECK, str(error), "see its log"))
            continue
        if trouble := said.get("trouble"):
            found.append(
                fail(CHECK, f"{process.name} refuses changes: {trouble}", "free space on its disk, or see its log")
            )
        found += _behind(process.name, said.get("write_behind"), likes.write_behind_ms / 1000)
    return found


def _place(place: Path, likes: LikesOptions, mounts: str) -> Finding:
    nearest = next(each for each in (place, *place.parents) if each.exists())
    kind = _file_system(nearest, mounts)
    if kind in IN_MEMORY:
        text = f"{place} is in memory ({kind}): likes survive kill -9, but no restart of this machine"
        return warn(CHECK, text, "set likes.folder to a folder on a disk")
    room = os.statvfs(nearest)
    free, wanted = room.f_bavail * room.f_frsize, SEGMENTS * likes.segment_mib << 20
    if free < wanted:
        text = f"{mib(free)} are free at {place}, but the log needs {mib(wanted)} besides its records"
        return warn(CHECK, text, "free space there, set likes.folder, or set a smaller likes.segment_mib")
    return ok(CHECK, f"the log is in {place}, on {kind or 'an unknown file system'}, with {mib(free)} free")


def _file_system(path: Path, mounts: str) -> str:
    """The type of the file system of a path."""
    resolved = path.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split()
        point = Path(words[1].replace("\\040", " "))
        if (point == resolved or point in resolved.parents) and len(point.parts) > best:
            best, kind = len(point.parts), words[2]
    return kind


def _behind(name: str, said: dict[str, float | str] | None, every_s: float) -> list[Finding]:
    if said is None:
        return [warn(CHECK, f"{name} has not opened its log yet", "see its log: it may wait for its database")]
    if said["error"]:
        text = f"{name}: {said['items_behind']} items were not written for {said['seconds_behind']} s: {said['error']}"
        return [fail(CHECK, text, "correct the database; likes continue, and the log keeps them")]
    if float(said["seconds_behind"]) > PASSES * every_s + 1:
        text = f"{name}: the last successful pass to the database began {said['seconds_behind']} s ago"
        return [warn(CHECK, text, "use a faster database, or set a longer likes.write_behind_ms")]
    return [ok(CHECK, f"{name}: {said['url']} has all but {said['items_behind']} items")]
