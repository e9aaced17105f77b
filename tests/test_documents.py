"""The tutorial, the how-tos, and the other documents: what they show is run, and what they point to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.documents import DOCS, ROOT, Block, Place, assert_shown, blocks, documents
from tests.process import free_ports

OWN_BROKER = {"acls.md", "security.md", "tutorial.md"}  # they start one, and some kill it
WIDTH = 120
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *documents(), ROOT / "krappy" / "GLOSSARY.md"]
PROSE = {*PAGES, *(ROOT / each for each in ("k8s/README.md", "krappy/console/API.md", "tests/peers/README.md"))}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_run(document: Path) -> bool:
    return any(block.language in ("sh", "python") and block.note != "not run" for block in blocks(document))


@pytest.mark.parametrize("document", [each for each in documents() if is_run(each)], ids=named)
def test_a_reader_does_it_all(document: Path, tmp_path: Path) -> None:
    """In a fresh folder, with a fresh broker, from the top to the end."""
    wanted = blocks(document)
    if document.name in OWN_BROKER:
        with Place(tmp_path, dict(zip(("native", "kafka", "http"), free_ports(3), strict=True))) as place:
            place.do(wanted)
        return
    data, folder = tmp_path / "broker", tmp_path / "reader"
    folder.mkdir()
    with (
        run_broker(data, listen_http="127.0.0.1:0", group_initial_rebalance_delay_ms=0) as broker,
        Place(folder, ports(broker), runs_broker=False) as place,
    ):
        place.do(wanted)


def ports(broker: RunningBroker) -> dict[str, int]:
    addresses = {"native": broker.address, "kafka": broker.kafka_address, "http": broker.http_address}
    return {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([\w./-]*)(#[\w-]*)?\)", page.read_text("utf-8")):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), f"{link} does not exist"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor[1:] in {slug(heading) for heading in headings}, f"{link} has no heading {anchor}"


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", sorted(PROSE - {ROOT / "CHANGELOG.md"}), ids=named)
def test_its_lines_are_short(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith(("|", "    "))]
    assert not long, f"lines of prose have at most {WIDTH} characters"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_path_in_the_text_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    paths = set(re.findall(r"`((?:krappy|store|handlers|tests|nix|k8s)/[\w./-]*)`", text))
    missing = [path for path in paths if not (ROOT / path).is_file() and not any((ROOT / path).glob("**/*.*"))]
    assert not missing


def test_the_tutorial_and_the_how_tos_are_run() -> None:
    run = {named(document) for document in documents() if is_run(document)}
    assert {f"krappy/docs/{name}.md" for name in ("tutorial", "reference", "howto/python", "howto/groups")} < run


def test_every_document_is_in_the_list() -> None:
    listed = (DOCS / "README.md").read_text("utf-8")
    for document in documents():
        assert document.name == "README.md" or f"]({document.relative_to(DOCS)}" in listed, document


def test_what_is_promised_is_compared_line_by_line() -> None:
    assert_shown("a … c\nlast", "\na b c\nlast\n\n")
    for promised in ("a … c", "a … c\nlast\nmore", "b … c\nlast"):
        with pytest.raises(AssertionError):
            assert_shown(promised, "a b c\nlast")


def test_the_blocks_of_a_document(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# P\n\n```sh\nls\n```\n```text\na\n```\n```python a.py\nx = 1\n```\n")
    assert blocks(page) == [Block("sh", "", "ls"), Block("text", "", "a"), Block("python", "a.py", "x = 1")]
