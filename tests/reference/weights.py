"""Slow, obvious model of `pyext/weights.pyx`: a fraction for each client, to which every minute adds."""

from fractions import Fraction

CONSTANT = Fraction(1, 1000)
PUNISHMENT_MAX = Fraction(1000)
EXACT = Fraction(1, 1000)  # of a punishment, to which the kernel rounds


def punishment(online: int, picked_per_task: Fraction, tasks_per_minute: Fraction) -> Fraction:
    if online == 0:
        return Fraction(0)
    if picked_per_task * tasks_per_minute == 0:
        return PUNISHMENT_MAX
    return min(PUNISHMENT_MAX, online / (picked_per_task * tasks_per_minute))


class Weights:
    def __init__(self, clients: int, minute: int) -> None:
        self.weights = [Fraction(1)] * clients
        self.minute = minute

    def advance(self, minute: int) -> None:
        while self.minute < minute:
            self.minute += 1
            self.weights = [min(Fraction(1), weight + CONSTANT) for weight in self.weights]

    def punish(self, clients: list[int], punishment: Fraction) -> None:
        for client in clients:
            self.weights[client] = max(Fraction(0), self.weights[client] - CONSTANT * punishment)

    def restore(self, clients: list[int]) -> None:
        for client in clients:
            self.weights[client] = Fraction(1)

    def tired(self, weight: Fraction) -> set[int]:
        return {client for client, has in enumerate(self.weights) if has < weight}
