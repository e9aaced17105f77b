"""The blocking client: threads around the shared code."""
