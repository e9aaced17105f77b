"""What a cluster of brokers agrees on, and by which rules: pure, so that a simulation runs the same code."""
