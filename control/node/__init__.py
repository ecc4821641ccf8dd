"""One process of a role: administration, registration, metrics, logs, what changes while it runs."""
