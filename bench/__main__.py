"""`python -m bench …`, the same as `muster bench …`."""

from bench.cli import app

app(prog_name="muster bench")
