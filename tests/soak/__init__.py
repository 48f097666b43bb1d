"""A real server under mixed load for a long time: memory, leaks, and whether every turn had one ending."""
