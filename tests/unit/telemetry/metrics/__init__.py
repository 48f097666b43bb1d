"""Tests of telemetry.metrics."""
