"""Tests of `telemetry.kv`."""
