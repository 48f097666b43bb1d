"""One module at a time: no torch, no clock, no network."""
