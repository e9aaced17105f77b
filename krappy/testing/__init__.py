"""Helpers for the tests of programs that use Krappy."""
