"""One step each. A step that was released is never changed, and can be run again where it was interrupted."""
