"""More than one room at work, and tokens compared with references."""
