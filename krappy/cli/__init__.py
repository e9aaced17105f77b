"""The command line: one module for each group of commands, over `krappy.blocking`.

What every command keeps to: results on stdout, everything said to a person on stderr; `--json` gives the same
facts to a program; an error is one line that says what to do, and an exit status that is not 0.
"""
