"""Krappy: an event broker whose topics are also tables."""
