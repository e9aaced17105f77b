"""One partition: its log's appends and their commit, the folding of its view, its reads, retention of its events.

`partition.Partition` is the face; the other modules are its parts and are given it. Nothing here knows other topics
than its own, nor the broker: what the broker lends is `lent.Lent`.
"""
