"""Entries, the rows of views: packed one by one, and by columns. Values alone; everybody may enter."""
