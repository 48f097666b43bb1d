"""Who holds which units, as numbered events: for people, and for routers that know the common format."""
