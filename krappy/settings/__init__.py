"""Settings: the server's own (`server`), and those of topics (`topic`, with a row for each in `topic_table`).

Those of topics are values, which everybody may enter; the server's are read from files, the environment and flags.
"""
