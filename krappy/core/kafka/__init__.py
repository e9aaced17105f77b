"""Kafka's consumer groups as pure state machines: they take messages and a time (ms), and give answers and effects."""
