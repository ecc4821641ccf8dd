"""Rounds: every entry once per round, in turning order, so that the machine's moods hit all entries alike."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.progress import Progress, silent

REPEATS_MAX = 2


class VoidRunError(Exception):
    """All runs were void: the machine is too busy to measure on."""


class VoidFigures(dict[str, float]):
    """The figures of a run that was void each time: none is a number."""

    def __init__(self, figures: Iterable[str], reason: str) -> None:
        super().__init__(dict.fromkeys(figures, math.nan))
        self.reason = reason


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
    """One figure over the rounds, in their order. Void rounds have no number and do not count."""

    values: tuple[float, ...]
    void: str = ""
    """The reason for which no round has a figure; empty if one has."""

    @property
    def median(self) -> float:
        return statistics.median(self._valid)

    @property
    def min(self) -> float:
        return min(self._valid)

    @property
    def max(self) -> float:
        return max(self._valid)

    def scaled(self, factor: float) -> "Series":
        return Series(tuple(value * factor for value in self.values), self.void)

    def slope(self, base: "Series", steps: float) -> "Series":
        """Round by round: the growth from `base`, per step."""
        return self._with(base, lambda mine, theirs: (mine - theirs) / steps)

    def over(self, reference: "Series") -> "Series":
        """Round by round: a ratio of neighbouring runs, never of medians."""
        return self._with(reference, lambda mine, theirs: mine / theirs if theirs else float("inf"))

    def _with(self, other: "Series", each: Callable[[float, float], float]) -> "Series":
        values = tuple(each(mine, theirs) for mine, theirs in zip(self.values, other.values, strict=True))
        void = self.void or other.void
        if not void and all(map(math.isnan, values)):
            void = "one side of each round is void"
        return Series(values, void)

    @property
    def _valid(self) -> Sequence[float]:
        return [value for value in self.values if not math.isnan(value)] or self.values


@dataclass
class Results:
    """Entry -> figure -> series."""

    samples: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)

    def series(self, entry: str, figure: str) -> Series:
        samples = self.samples[entry]
        void = [sample.reason for sample in samples if isinstance(sample, VoidFigures)]
        values = (math.nan if isinstance(sample, VoidFigures) else sample[figure] for sample in samples)
        return Series(tuple(values), void[0] if len(void) == len(samples) else "")

    def figures(self, entry: str) -> Iterable[str]:
        """The names of its figures, by a valid round if there is one."""
        return min(self.samples[entry], key=lambda sample: isinstance(sample, VoidFigures)).keys()


def interleave(entries: Sequence[Entry], rounds: int, progress: Progress = silent) -> Results:
    """Run all entries `rounds` times. A void run is repeated up to twice, then its figures are void. Raises
    `VoidRunError` if all are."""
    results = Results({entry.name: [] for entry in entries})
    with progress(len(entries) * rounds) as step:
        for number in range(rounds):
            turn = number % len(entries) if entries else 0
            for entry in [*entries[turn:], *entries[:turn]]:
                step(f"round {number + 1}/{rounds}  {entry.name}")
                results.samples[entry.name].append(_valid(entry, results.samples[entry.name]))
    void = [sample for samples in results.samples.values() for sample in samples if isinstance(sample, VoidFigures)]
    if void and len(void) == len(entries) * rounds:
        raise VoidRunError(f"{entries[0].name}: {void[0].reason}; try again on a quieter machine")
    return results


def _valid(entry: Entry, before: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    tries = 1 if any(isinstance(sample, VoidFigures) for sample in before) else 1 + REPEATS_MAX
    for _ in range(tries):
        sample = entry.run()
        if not sample.void:
            return sample.figures
    return VoidFigures(sample.figures, sample.void)
