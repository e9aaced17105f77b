"""One partition: appends to its log and their commit, the folding of its view, reads, and retention of its events.

Other packages use `partition.Partition`. It extends `viewed.Viewed`, which extends `replica.Replica`; each part here is
given the lowest of these that it needs. Nothing here knows other topics or the broker, except what the broker lends
(`replica.Lent`).
"""
