"""The engine: a pure core, an executor that owns torch, and the asyncio runtime that joins them."""
