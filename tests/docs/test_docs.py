"""READMEs and docs/: short sentences, links that lead somewhere, parts as the code has them."""

import json
import re
from os.path import normpath
from pathlib import Path

import pytest
from docs_reference import DOCS, ROOT, written

README = ROOT / "README.md"
READMES = [README, *(ROOT / room / "README.md" for room in ("deploy", "grafana", "policies"))]
PAGES = [*READMES, ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
MAX_WORDS = 25
_MADE = r"<!-- (?:generated|make (?:bench|chaos)).*?<!-- end.*?-->"
BLOCK = re.compile(rf"^( *)```.*?^\1```$|{_MADE}", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def sentences(text: str) -> list[str]:
    """Of prose and table cells, without code blocks and generated parts. Inline code counts as one word."""
    text = LINK.sub(r"\1", re.sub(r"`[^`]+`", "CODE", BLOCK.sub("\n\n", text)))
    text = re.sub(r"^(#.*|\|[-|]+\|)$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\|(.*)\|$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.MULTILINE)
    ends = re.compile(r"(?<=[.!?])[*_)\"]*\s|\n\s*\n")
    return [one for one in ends.split(text) if one.strip()]


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


def test_a_long_sentence_is_found_wherever_it_is() -> None:
    long = " ".join(["word"] * 26) + "."
    for text in (long, f"- {long}", f"Short. {long}", f"| a | {long} |", f"1. Short.\n2. {long}", f"`x`: {long[5:]}"):
        assert any(len(one.split()) > MAX_WORDS for one in sentences(text)), text
    assert not any(len(one.split()) > MAX_WORDS for one in sentences(f"Short.\n\n```sh\n{long}\n```\n"))


@each_page
def test_no_sentence_is_long(page: Path) -> None:
    long = [" ".join(one.split()) for one in sentences(page.read_text("utf-8")) if len(one.split()) > MAX_WORDS]
    assert not long, "\n".join(f"{len(one.split())}: {one}" for one in long)


@each_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for _, target in LINK.findall(BLOCK.sub("", page.read_text("utf-8"))):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            file = Path(normpath(page.parent / name)) if name else page  # the architecture page is a link
            assert file.is_file(), target
            assert not anchor or anchor in anchors(file), target
            assert page.parent not in (DOCS, *DOCS.iterdir()) or DOCS in file.parents, f"{target} is not in the site"


@each_page
def test_generated_parts_are_what_the_code_has(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == written(text), "run: make docs"


def test_the_types_of_audit_records_are_those_of_their_schema() -> None:
    schema = json.loads((ROOT / "proxy" / "sluicegate" / "audit" / "record.schema.json").read_text("utf-8"))
    types = " ".join(schema["properties"]["type"]["enum"])
    assert f"- `type` is one of `{types}`." in (DOCS / "reference" / "audit-record.md").read_text("utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 200 and README.stat().st_size <= 12 * 1024


def test_every_page_is_linked_from_the_index_and_the_navigation() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {target for _, target in LINK.findall((DOCS / "index.md").read_text("utf-8"))} | {"index.md"} == pages
    assert set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8"))) == pages
