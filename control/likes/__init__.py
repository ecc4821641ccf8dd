"""The words of likes, their routes over HTTP, their checks. Knows no other system."""
