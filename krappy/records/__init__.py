"""Record batches in Kafka's format v2: reading, writing and filtering their bytes; codecs and varints.

Pure functions of values: no files, no sockets, no clock. Any module may import it.
"""
