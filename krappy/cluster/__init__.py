"""How brokers agree: the store of the cluster's tree, with ZooKeeper behind it or this broker's own folder.

`store` is the port that the broker uses. `zk` is a client of ZooKeeper, `mirror` keeps a copy of the tree up to date
through it. `member` registers a broker for as long as a session lasts, and `controller` is the one among them that
elects leaders. `fetcher` copies what this broker follows, over the links of `peers`. The rules of the cluster are not
here but in krappy.core.cluster, which is pure.
"""
