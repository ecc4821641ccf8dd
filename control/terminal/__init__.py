"""Building blocks of commands: words, tables, errors, and the instance or registry that they use."""
