"""Kafka's consumer groups as pure state machines: messages and a time (ms) go in, answers and effects come out."""
