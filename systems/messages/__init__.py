"""Delayed messages: topics, accepted messages, the schedule, callbacks, and their results."""
