"""Seeded worlds with faults, against the core and the shadow executor."""
