"""Helpers for the tests of programs that use Krappy."""

from krappy.testing import running as running
