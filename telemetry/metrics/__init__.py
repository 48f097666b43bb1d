"""Metrics: counted on the loop, read by whoever collects them."""
