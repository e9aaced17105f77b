"""Wire protocols, sans-IO: bytes in, messages out. No sockets, no clock."""
