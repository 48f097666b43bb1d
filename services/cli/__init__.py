"""The command line: `tenure serve | chat | generate | sessions | pools | check | demo`."""
