"""Servers on uvloop: each a thin shell around one compiled engine."""
