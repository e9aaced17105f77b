"""Record batches, Kafka's format v2: their bytes, read and written; what survives of them; codecs and varints.

Values alone: no files, no sockets, no clock. Everybody may enter.
"""
