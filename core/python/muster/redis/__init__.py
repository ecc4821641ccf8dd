"""Redis for any program: where one is, clients of it, scripts, and connections that have ended. Needs `muster[cache]`."""
