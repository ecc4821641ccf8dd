"""The descriptors of the roles of presence."""
