"""Sinks of the core's events: what the world is told, never what the engine does."""
