"""One process of a role: administration, registration, metrics, logs, values that change while it runs."""
