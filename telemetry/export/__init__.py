"""Sending spans and metrics to a collector, from a thread of its own."""
