"""What a cluster of brokers agrees on, and its rules. Pure, so that a simulation can run the same code."""
