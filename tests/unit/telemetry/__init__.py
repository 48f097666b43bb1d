"""Tests of `telemetry`."""
