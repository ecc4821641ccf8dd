"""What commands are made of: words, tables, errors, and the instance or registry that they speak to."""
