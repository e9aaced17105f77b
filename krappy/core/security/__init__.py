"""Operations, and the kinds of resources that they are done to, as values. Pure: no sockets, no clock."""
