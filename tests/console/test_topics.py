"""Topics over HTTP."""

from __future__ import annotations

from tests.console.web import Web


def test_a_topic_is_created_described_altered_and_deleted(web: Web) -> None:
    path = web.topic("life", 2, cleanup_policy="compact")
    web.publish(path, "k", "v")
    told = web.get(path)
    assert told["config"] == {"cleanup.policy": "compact"}
    assert told["settings"]["retention.ms"] == "-1"
    assert told["summary"]["events"] == 1
    assert told["summary"]["cleanup_policy"] == "compact"
    assert [each["partition"] for each in told["partitions"]] == [0, 1]
    assert sum(each["high_watermark"] for each in told["partitions"]) == 1
    assert all(each["stable"] == each["high_watermark"] and each["view_error"] is None for each in told["partitions"])

    changed = web.patch(path, {"config": {"cleanup.policy": None, "retention.ms": 1000}, "partitions": 3})
    assert changed["config"] == {"retention.ms": "1000"}
    assert changed["summary"]["partitions"] == 3

    assert web.delete(path, confirm="life") == {"deleted": "life"}
    assert web.get(path, status=404)["code"] == "UNKNOWN_TOPIC"


def test_deleting_needs_the_name_once_more(web: Web) -> None:
    path = web.topic("precious")
    assert "parameters" in web.delete(path, status=400)["detail"]
    assert web.delete(path, status=400, confirm="precius")["code"] == "NOT_CONFIRMED"
    assert (
        web.post(f"{path}/delete-records", {"confirm": "", "before": {"0": -1}}, status=400)["code"] == "NOT_CONFIRMED"
    )
    assert web.get(path)["name"] == "precious"


def test_the_list_is_filtered_and_paged(web: Web) -> None:
    for name in ("page-c", "page-a", "page-b", "other"):
        web.topic(name)
    first = web.get("/topics", filter="PAGE-", limit=2)
    assert [each["name"] for each in first["topics"]] == ["page-a", "page-b"]
    assert (first["total"], first["after"]) == (3, "page-b")
    second = web.get("/topics", filter="PAGE-", limit=2, after=first["after"])
    assert [each["name"] for each in second["topics"]] == ["page-c"]
    assert second["after"] is None


def test_partitions_are_paged(web: Web) -> None:
    path = web.topic("wide", 5)
    first = web.get(path, limit=3)
    assert ([each["partition"] for each in first["partitions"]], first["partitions_after"]) == ([0, 1, 2], 2)
    second = web.get(path, limit=3, after=2)
    assert ([each["partition"] for each in second["partitions"]], second["partitions_after"]) == ([3, 4], None)


def test_the_oldest_events_are_forgotten(web: Web) -> None:
    path = web.topic("forget")
    for number in range(3):
        web.publish(path, None, str(number))
    answer = web.post(f"{path}/delete-records", {"confirm": "forget", "before": {"0": 2}})
    assert answer == {"start": {"0": 2}}
    assert web.get(path)["partitions"][0]["start"] == 2
    beyond = web.post(f"{path}/delete-records", {"confirm": "forget", "before": {"0": 9}}, status=400)
    assert (beyond["code"], beyond["details"]["end"]) == ("OFFSET_OUT_OF_RANGE", 3)
    assert web.post(f"{path}/delete-records", {"confirm": "forget", "before": {"x": 1}}, status=400)["detail"]


def test_what_the_broker_refuses_is_a_problem(web: Web) -> None:
    web.topic("twice")
    again = web.post("/topics", {"name": "twice"}, status=409)
    assert again["type"] == "urn:krappy:error:TOPIC_ALREADY_EXISTS"
    assert (again["status"], again["title"]) == (409, "Conflict")
    assert web.post("/topics", {"name": "../evil"}, status=400)["code"] == "INVALID_TOPIC"
    assert web.post("/topics", {"name": "n", "config": {"retention.ns": 1}}, status=400)["code"] == "INVALID_CONFIG"
    assert "$.partitions" in web.post("/topics", {"name": "n", "partitions": 0}, status=400)["detail"]
    assert "nam" in web.post("/topics", {"nam": "n"}, status=400)["detail"]
