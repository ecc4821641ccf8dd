"""One step per file. A released step never changes, and can be run again after an interruption."""
