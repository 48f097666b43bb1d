"""A time span of a server as a picture: History in, one HTML page out. Pure: nothing here asks, reads or writes."""
