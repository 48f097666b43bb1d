"""The matrix of exactness: every way to run a conversation must give the ids of a cold run."""
