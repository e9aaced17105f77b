"""The coordinator of Kafka's consumer groups: their state machines, timers, offsets, and what is stored of them."""
