"""Slow, obvious model of `pyext/weights.pyx`: a weight for each client, in millionths, to which every minute adds."""

from fractions import Fraction

WHOLE = 1_000_000
CONSTANT = WHOLE // 1000
PUNISHMENT_MAX = Fraction(1000)


def punishment(online: int, picked_per_task: Fraction, tasks_per_minute: Fraction) -> Fraction:
    if online == 0:
        return Fraction(0)
    if picked_per_task * tasks_per_minute == 0:
        return PUNISHMENT_MAX
    return min(PUNISHMENT_MAX, online / (picked_per_task * tasks_per_minute))


class Weights:
    def __init__(self, clients: int, minute: int) -> None:
        self.weights = [WHOLE] * clients
        self.minute = minute

    def advance(self, minute: int) -> None:
        while self.minute < minute:
            self.minute += 1
            self.weights = [min(WHOLE, weight + CONSTANT) for weight in self.weights]

    def punish(self, clients: list[int], punishment: Fraction) -> None:
        for client in clients:
            self.weights[client] = max(0, self.weights[client] - int(CONSTANT * punishment))

    def restore(self, clients: list[int]) -> None:
        for client in clients:
            self.weights[client] = WHOLE

    def tired(self, millionths: int) -> set[int]:
        return {client for client, has in enumerate(self.weights) if has < millionths}
