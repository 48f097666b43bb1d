"""The command line: `tenure serve | chat | generate | pools | demo`."""
