"""Tests, by room: unit, scripts, sim, integration, e2e; what they share is in the kit."""
