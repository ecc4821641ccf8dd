"""A fleet's tasks, runs and results in SQL. `schema.py` has the tables, `store.py` the transactions."""
