"""A system that lives in the tests alone: it shows that a system is a folder, and its roles follow from descriptors."""
