"""Building blocks of commands: output, tables, errors, and the instance or registry that they use."""
