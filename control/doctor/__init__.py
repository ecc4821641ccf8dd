"""What `muster doctor` checks. Judgements are functions of what was read; only `probe` reads the machine."""
