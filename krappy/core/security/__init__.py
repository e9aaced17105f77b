"""Who may do what, as values: operations and the kinds of things that they are done to. Pure: no sockets, no clock."""
