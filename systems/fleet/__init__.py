"""The fleet: which clients there are, which of them a task goes to, when it runs and what came back."""
