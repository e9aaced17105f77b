"""The programs of `krappy demo`: they show what Krappy does, and check the results."""
