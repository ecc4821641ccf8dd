"""A site on Muster: what a user builds with the library and the HTTP face. `python -m portal` runs it (`README.md`)."""
