"""The console: the broker over HTTP, for operators and browsers.

    app.py          the application (ASGI): every request passes here
    security.py     who may send requests; refuses those of other sites' pages in a visitor's name
    api.py          what an operation is: types describe its parameters, body and answer
    openapi.py      the OpenAPI document, made from these types
    problems.py     errors as RFC 9457 problem details
    topics.py events.py table.py groups.py connections.py tail.py watch.py   the operations, by noun
    history.py      the last hour, kept for charts; history_api.py gives it
    health.py metrics.py                                               for probes and for Prometheus
    shown.py        keys and values, which are bytes, for JSON and msgpack
    static/         the pages

It calls the broker through `krappy.ports`, as handlers do, and opens no files and no sockets. It needs the extra
`console`.
"""
