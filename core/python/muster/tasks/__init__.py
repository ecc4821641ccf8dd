"""Tasks: functions that workers call later, once each unless a worker dies (`docs/tasks.md`)."""

from .declared import Handler, Hopeless, Tasks
from .order import Order
from .worker import Figures, Worker

__all__ = ["Figures", "Handler", "Hopeless", "Order", "Tasks", "Worker"]
