"""What coordinators keep in the internal topics of a cluster: groups, transactional ids.

May import: topics, partitions, and tables to read their views.
"""
