"""One partition: its log's appends and their commit, the folding of its view, its reads, retention of its events.

`partition.Partition` is the face. It stands on `viewed.Viewed`, and that on `replica.Replica`; each part is given the
lowest of these that it needs. Nothing here knows other topics than its own, nor the broker: what that lends is
`lent.Lent`.
"""
