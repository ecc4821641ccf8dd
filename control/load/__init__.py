"""`muster load`: open schedules against any deployment, checked, with a live table, a report and a verdict.

`generator.py` says what a system gives; `drive.py` runs it; `hosts.py` joins several machines into one run.
"""
