"""Tests of telemetry.export."""
