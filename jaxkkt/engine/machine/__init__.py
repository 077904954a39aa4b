"""Where a sweep runs: devices, and what is compiled, kept and sent there; nothing of runs."""
