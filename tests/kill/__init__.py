"""Kill-tests: a real server process is hurt in each way we know, and a script tells in a table what came of it."""
