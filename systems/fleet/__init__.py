"""The fleet: its clients, the choice of clients for a task, the schedule, and the results."""
