"""The command line: one module for each command or group of commands, over `krappy.blocking`.

The rules of all commands: results go to stdout, remarks for people to stderr. `--json` prints the same facts for
programs. An error is one line that says what to do, and an exit status that is not 0.
"""

from krappy.deferred import defer

# Before anything imports them: most commands, and many brokers, need no OpenSSL.
defer("ssl", "hashlib", "hmac", "secrets")
