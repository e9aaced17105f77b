"""The console: what operators and browsers see of the broker over HTTP.

    app.py          the application (ASGI): every request passes here
    security.py     who may ask, and what keeps other sites' pages from asking in a visitor's name
    api.py          what an operation is; its parameters, body and answer are types, and nothing else describes them
    openapi.py      the document made from those
    problems.py     errors as RFC 9457 problem details
    topics.py events.py table.py groups.py connections.py tail.py      the operations, by noun
    health.py metrics.py                                               for probes and for Prometheus
    shown.py        keys and values, which are bytes, for JSON and msgpack
    static/         the pages

It calls the broker through `krappy.ports`, as handlers do, and opens no files and no sockets. It needs the extra
`console`.
"""
