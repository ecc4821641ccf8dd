"""Rounds: every entry once per round, in turning order, so that the machine's moods hit all entries alike."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.progress import Progress, silent

REPEATS_MAX = 2


class VoidRunError(Exception):
    """A run was void three times: the machine is too busy to measure on.

    `done` has the finished rounds.
    """

    def __init__(self, message: str, done: "Results | None" = None) -> None:
        super().__init__(message)
        self.done = done or Results()


@dataclass(frozen=True)
class Sample:
    """The figures of one run of an entry. `void` says why they mean nothing (a late generator); empty if they do."""

    figures: Mapping[str, float]
    void: str = ""


@dataclass(frozen=True)
class Entry:
    name: str
    run: Callable[[], Sample]


@dataclass(frozen=True)
class Series:
    """One figure over the rounds, in their order."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def min(self) -> float:
        return min(self.values)

    @property
    def max(self) -> float:
        return max(self.values)

    def scaled(self, factor: float) -> "Series":
        return Series(tuple(value * factor for value in self.values))

    def slope(self, base: "Series", steps: float) -> "Series":
        """Round by round: the growth from `base`, per step."""
        return Series(tuple((mine - theirs) / steps for mine, theirs in zip(self.values, base.values, strict=True)))

    def over(self, reference: "Series") -> "Series":
        """Round by round: a ratio of neighbouring runs, never of medians."""
        pairs = zip(self.values, reference.values, strict=True)
        return Series(tuple(mine / theirs if theirs else float("inf") for mine, theirs in pairs))


@dataclass
class Results:
    """Entry -> figure -> series."""

    samples: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)

    def series(self, entry: str, figure: str) -> Series:
        return Series(tuple(sample[figure] for sample in self.samples[entry]))

    def figures(self, entry: str) -> Iterable[str]:
        return self.samples[entry][0].keys()


def interleave(entries: Sequence[Entry], rounds: int, progress: Progress = silent) -> Results:
    """Run all entries `rounds` times. Repeats a void run up to twice, then raises `VoidRunError`."""
    results = Results({entry.name: [] for entry in entries})
    with progress(len(entries) * rounds) as step:
        for number in range(rounds):
            turn = number % len(entries) if entries else 0
            for entry in [*entries[turn:], *entries[:turn]]:
                step(f"round {number + 1}/{rounds}  {entry.name}")
                results.samples[entry.name].append(_valid(entry, results))
    return results


def _valid(entry: Entry, done: Results) -> Mapping[str, float]:
    for _ in range(1 + REPEATS_MAX):
        sample = entry.run()
        if not sample.void:
            return sample.figures
    times = f"{1 + REPEATS_MAX} times in a row"
    raise VoidRunError(f"{entry.name}: {sample.void}, {times}; try again on a quieter machine", done)
