"""What `tenure top` shows: readings of a server → lines that fit a terminal."""
