"""`TOPIC@latest`: a topic's table, read like a topic by Kafka's consumers.

May import: partitions, their views, and files of its own.
"""
