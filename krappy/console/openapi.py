"""The OpenAPI document (3.1), made from the operations themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from krappy.console.api import JSON, MSGPACK, ApiOperation
from krappy.console.problems import Problem

REF = "#/components/schemas/{name}"
VERSION = "1"  # of the API; the broker's own is told by /overview, to those who have logged in
ABOUT = (
    "Keys and values are bytes. In JSON they are text, JSON or base64, in msgpack (Accept: application/msgpack) they "
    "are bytes. Errors are problem details (RFC 9457). A request that changes something needs the header "
    "Krappy-Request, unless it carries a bearer token."
)


def document(operations: Iterable[ApiOperation]) -> dict[str, Any]:
    """The document, ready for JSON. Anybody may read it, so it tells nothing of this broker."""
    operations = list(operations)
    types: list[Any] = [Problem]
    for each in operations:
        types += [kind for kind in (each.body, None if each.live else each.answer) if kind is not None]
    _, components = msgspec.json.schema_components(types, ref_template=REF)
    paths: dict[str, Any] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Krappy console", "version": VERSION, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(each: ApiOperation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.summary,
        "tags": [each.tag],
        "parameters": [*_places(each), *_query(each), *_header(each)],
        "responses": {str(each.status): _answer(each), "default": _problem()},
    }
    if each.body is not None:
        told["requestBody"] = {"required": True, "content": _content(each.body, JSON, MSGPACK)}
    return told


def _places(each: ApiOperation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _schema(kind)} for name, kind in each.places.items()
    ]


def _query(each: ApiOperation) -> list[dict[str, Any]]:
    if each.query is None:
        return []
    _, components = msgspec.json.schema_components([each.query], ref_template=REF)
    struct = components[each.query.__name__]
    return [_parameter(name, dict(schema), name in struct["required"]) for name, schema in struct["properties"].items()]


def _parameter(name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    description = schema.pop("description", None)
    if schema.get("default") is None:
        schema.pop("default", None)
    if "anyOf" in schema:  # a query parameter that is not given is absent, never null
        kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
        schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    told = {"name": name, "in": "query", "required": required, "schema": schema}
    return told if description is None else {**told, "description": description}


def _header(each: ApiOperation) -> list[dict[str, Any]]:
    if not each.changes:
        return []
    about = "any value; needed unless the request carries a bearer token"
    return [
        {"name": "Krappy-Request", "in": "header", "required": False, "description": about, "schema": {"const": "1"}}
    ]


def _answer(each: ApiOperation) -> dict[str, Any]:
    if each.live:
        about = "server-sent events; or msgpack maps with event, id and data, one after the other"
        kinds = {"text/event-stream": {"schema": {"type": "string"}}, MSGPACK: {"schema": {"type": "object"}}}
        return {"description": about, "content": kinds}
    return {"description": each.summary, "content": _content(each.answer, JSON, MSGPACK)}


def _problem() -> dict[str, Any]:
    kinds = ("application/problem+json", "application/problem+msgpack")
    return {"description": "an error (RFC 9457)", "content": _content(Problem, *kinds)}


def _content(kind: Any, *media: str) -> dict[str, Any]:
    return {each: {"schema": _schema(kind)} for each in media}


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return schema
