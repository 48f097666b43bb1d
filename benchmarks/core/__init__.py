"""What the books cost: micro-benchmarks of `engine.core` on one thread, without an executor."""
