"""Unit tests of `engine.core`, one file a module."""
