"""The registry: a small tree in two versions (embedded, ZooKeeper), and the map that is read from it."""
