"""Tests of `engine/runtime`."""
