"""The checks of `muster doctor`. Judgements are functions of readings; only `probe` reads the machine."""
