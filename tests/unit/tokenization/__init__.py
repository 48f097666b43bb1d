"""Vocabulary, tokenizer and chat template over a tiny vocabulary."""
