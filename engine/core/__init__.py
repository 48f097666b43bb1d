"""The pure core: ownership of KV, sessions and scheduling. No clock, no I/O, no threads, no torch."""
