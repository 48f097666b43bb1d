"""The asyncio shell around the core: loop, inbox, streams, housekeeping, lifecycle, clock. No policy."""
