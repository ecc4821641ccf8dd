"""The nodes of an installation: the supervisor of `muster up`, the daemon of `muster serve`, growth."""
