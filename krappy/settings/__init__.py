"""Settings: the server's (`server`), and those of topics (`topic`, with a row for each in `topic_table`).

Topics' settings are plain values that any module may import; the server's are read from files, the environment and
flags.
"""
