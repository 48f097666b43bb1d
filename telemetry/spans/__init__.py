"""Spans: what a turn, a session and a step did, and how KV went from one to the next."""
