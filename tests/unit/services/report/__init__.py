"""Tests of `services/report`."""
