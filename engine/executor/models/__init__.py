"""The forward of each model family."""
