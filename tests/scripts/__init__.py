"""Transcripts: commands and the trace that each must leave."""
