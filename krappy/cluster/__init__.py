"""How brokers agree through ZooKeeper, and how they ask each other.

`zk` is a client of ZooKeeper, and `mirror` keeps a copy of the tree up to date through it (the port is
krappy.ports.store). `member` registers a broker for as long as a session lasts, and `controller` is the one among the
members that elects leaders. `fetcher` copies what this broker follows, over the links of `peers`. The rules of the
cluster are not here but in krappy.core.cluster, which is pure.
"""
