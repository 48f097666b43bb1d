"""Tests of the soak's statistics and counts."""
