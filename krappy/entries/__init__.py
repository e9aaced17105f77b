"""Entries, the rows of views: packed one by one, and by columns. Pure functions of values; any module may import it."""
