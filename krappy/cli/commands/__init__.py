"""The commands: a module for each, whose function has its name. `krappy --help` finds them here.

A command is imported when it is asked for: `krappy get` does not pay for what `krappy bench` needs. What several of
them need is beside this folder.
"""
