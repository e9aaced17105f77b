"""Ships with Krappy for the tests of its users."""
