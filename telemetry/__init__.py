"""Sinks of the core's events. They never block, never fail a request, and count what they lose."""
