"""The commands: one module each, with a function of the same name. `krappy --help` finds them here.

A command is imported when it is used, so `krappy get` does not load what `krappy bench` needs. Code that several
commands share is in `krappy/cli/`.
"""
