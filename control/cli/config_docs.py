"""Writes `docs/configuration.md` from the keys in `control/config/options.py`."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from muster_server.control.config.options import UP, whole
from muster_server.control.node.live import RELOADED
from muster_server.plane.kinds import command_keys

HEAD: Final = """\
# Configuration

<!-- Written by `muster config docs`; edit control/config/options.py. -->

```
muster config check            # read everything and name each mistake
muster config show --origin    # every value, and where it came from
```

One TOML file: `--config FILE`, else `$MUSTER_CONFIG`, else `./muster.toml`, else `~/.config/muster/muster.toml`.
`./muster.toml` must belong to you or root, and others may not write it.
The last of these that names a key sets it: the default, the value of `muster up`, the file, the environment
(`MUSTER_SECTION__KEY`, as `MUSTER_GATEWAY__ARENA_MIB=64`), a flag. An unknown key is an error, in the file and in the
environment.

SIGHUP makes a running node read everything again. The last column says what happens to a changed key: **reloaded** is in
force at once; for the others the log names the key under `needs_restart`.
"""

COMMANDS: Final = ("links.",)
"""Prefixes of keys that only commands read, at each call, besides those of systems."""

EXAMPLE: Final = """\
## Example

```toml
[up]
gateways = 2
brokers = "2x2"

[gateway]
arena_mib = 512

[namespaces.files]
flow = "paced"

[faults.links."gateway->client"]
loss = 0.02
```
"""


def markdown() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(whole(), ""), EXAMPLE])


def _sections(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    rows: list[str] = []
    hints = {field.name: field.type for field in msgspec.structs.fields(kind)}
    tables: list[tuple[type[msgspec.Struct], str]] = []
    for field in msgspec.structs.fields(kind):
        hint, name = hints[field.name], f"{prefix}{field.name}"
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            tables.append((hint, name))
        elif get_origin(hint) is Mapping or getattr(get_origin(hint), "__name__", "") == "Mapping":
            tables.append((get_args(hint)[1], f"{name}.NAME"))
        else:
            rows.append(_row(field, hint, name))
    if rows:
        yield f"## [{prefix.rstrip('.')}]\n\n{inspect.cleandoc(kind.__doc__ or '')}\n"
        yield "| key | sets | type | default | in `muster up` | unit | why | SIGHUP |\n|---|---|---|---|---|---|---|---|"
        yield "\n".join(rows) + "\n"
    for table, name in tables:
        yield from _sections(table, f"{name}.")


def _row(field: msgspec.structs.FieldInfo, hint: Any, name: str) -> str:
    text = why = unit = bounds = ""
    for meta in _metas(hint):
        extra = meta.extra or {}
        text, why, unit = meta.description or text, extra.get("why") or why, extra.get("unit") or unit
        low, high = meta.ge, meta.le
        if low is not None and high is not None:
            bounds = f" {low:g} to {high:g}" if isinstance(high, float) else f" {low} to {high}"
        if meta.pattern:
            bounds = f" `{meta.pattern}`"
    preset = UP.get(name)
    cells = [
        f"`{field.name}`",
        text or f"as `faults.{field.name}`",
        _type(hint) + bounds,
        _literal(field.default),
        "" if preset is None else _literal(preset),
        unit,
        why,
        "reloaded"
        if name in RELOADED
        else "read by each command"
        if name.startswith((*COMMANDS, *command_keys()))
        else "needs a restart",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _metas(hint: Any) -> Iterator[msgspec.Meta]:
    if metadata := getattr(hint, "__metadata__", None):
        yield from _metas(hint.__origin__)
        yield from (meta for meta in metadata if isinstance(meta, msgspec.Meta))
    else:
        for argument in get_args(hint):
            yield from _metas(argument)


def _type(hint: Any) -> str:
    if hasattr(hint, "__metadata__"):
        return _type(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return " or ".join(_literal(each) for each in get_args(hint))
    if get_args(hint):
        return " or ".join(_type(each) for each in get_args(hint) if each is not type(None))
    return {str: "text", int: "number", bool: "true or false"}.get(hint, "fraction")


def _literal(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"
