"""The command line: `tenure serve | chat | generate | sessions | fork | truncate | pools | snapshot | check | explain |
demo`.
"""
