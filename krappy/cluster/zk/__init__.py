"""A client of ZooKeeper 3.6 or later: `jute` is its wire format, `session` the protocol without IO, `client` the rest.

It has what a broker needs: sessions that outlive connections, conditional writes, `multi`, and persistent recursive
watches. Answers and events are handed on in the order in which they came.
"""
