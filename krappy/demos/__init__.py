"""Small programs that show what Krappy does and check themselves: what `krappy demo` runs."""
