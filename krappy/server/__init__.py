"""The trio server: bytes from sockets to handlers and back. Knows no store and no topic."""
