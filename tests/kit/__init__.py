"""What tests share: fakes that pass the same contract tests as the real thing, builders, oracles."""
