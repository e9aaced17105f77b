"""The coordinator of Kafka's consumer groups: owns the state machines, their timers, offsets and what is kept."""
