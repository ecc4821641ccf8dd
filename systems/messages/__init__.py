"""Delayed messages: topics, what is accepted, the schedule, who fires what, and what came of it."""
