"""The toy: counters (a partitioned machine), a window on them (a face), and a clock (a worker)."""

from typing import Annotated, Any, Final

import msgspec

from muster_server.plane.kind import Around, RoleKind, System, numbers
from muster_server.plane.options import FaceOptions, MachineOptions, Section, key

MODULE: Final = "tests.toy.build"


class Counter(MachineOptions, frozen=True):
    """Counts for the toy."""

    step: Annotated[int, key("What each count adds", "one by one", ge=1, le=100)] = 1


class Window(FaceOptions, frozen=True):
    """Shows what the toy counts."""

    greeting: Annotated[str, key("The first word that it says", "")] = "hello"


class Clock(Section, frozen=True):
    """Makes the toy's time pass."""

    every_ms: Annotated[int, key("Time between ticks", "", "ms", ge=1, le=10_000)] = 50


class ToySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of any of them."""

    options: Any


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a counter."""

    step: int


def told(options: Section, around: Around) -> ToySettings:
    return ToySettings(options=msgspec.to_builtins(options))


def steps(options: Counter, around: Around) -> Steps:
    return Steps(step=options.step)


COUNTER: Final = RoleKind(
    name="counter",
    process="machine",
    numbers=numbers(1_000),
    about="counts for the toy",
    options=Counter,
    settings=Steps,
    settle=steps,
    build=f"{MODULE}:counter",
    shape="partitioned",
    dials=("counter",),
    secrets=frozenset({"cluster"}),
    plural="counters",
    count="1",
    received="muster_toy_counted_total",
    sent="muster_toy_counted_total",
    carried="muster_toy_counted_total",
    pages=f"{MODULE}:pages",
    reloads={"counter.step": "step"},
)
WINDOW: Final = RoleKind(
    name="window",
    process="face",
    numbers=numbers(1_001),
    about="shows what the toy counts",
    options=Window,
    settings=ToySettings,
    settle=told,
    build=f"{MODULE}:window",
    registers="serving",
    plural="windows",
    received="muster_toy_shown_total",
)
CLOCK: Final = RoleKind(
    name="clock",
    process="worker",
    numbers=numbers(1_002),
    about="makes the toy's time pass",
    options=Clock,
    settings=ToySettings,
    settle=told,
    build=f"{MODULE}:clock",
    awaited=False,
)
SYSTEM: Final = System(
    name="toy",
    title="Toy",
    about="the smallest whole system",
    kinds=(COUNTER, WINDOW, CLOCK),
    presets={"counter.step": 2},
    commands="tests.toy.words:add",
)
