"""The fakes themselves: each must catch what it is there to catch."""
