"""The book builds into pages that load nothing from elsewhere, whose links lead somewhere, and whose parts agree."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import nbformat
import pytest
from bs4 import BeautifulSoup

from minillm import book
from minillm.errors import InputError, MissingError

ROOT = Path(__file__).parents[1]
CHAPTERS = ROOT / "chapters"
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole book, built as `minillm book` builds it."""
    return book.build(ROOT, tmp_path_factory.mktemp("book") / "site").parent


@pytest.fixture(scope="module")
def pages(site):
    """Every page by its path in the site, parsed."""
    return {
        path.relative_to(site).as_posix(): BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in site.rglob("*.html")
        if "_static" not in path.relative_to(site).parts
    }


@pytest.fixture
def sample(tmp_path):
    """A project with a small book that uses every form a chapter may have; a test may break it before building."""
    root = tmp_path / "project"
    chapters = root / "chapters"
    shutil.copytree(CHAPTERS, chapters, ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    shutil.copytree(ROOT / "minillm", root / "minillm", ignore=shutil.ignore_patterns("__pycache__"))
    write(chapters / "index.md", "# A book\n\n```{toctree}\n:glob:\n0*\n/notebooks/*\nglossary\n```\n")
    write(chapters / "01-first.md", "# First\n\n## The arithmetic\n\nNothing yet.\n")
    shutil.copy(ROOT / "tests" / "book_sample.md", chapters / "05-sample.md")
    write(chapters / "glossary.md", "# Glossary\n\n```{glossary}\nKV cache\n  What is kept.\n```\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# By hand")])
    write(root / "notebooks" / "05-sample.ipynb", nbformat.writes(notebook))
    return root


def write(path: Path, text: str) -> None:
    """Write a text file, and the folder around it."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def edit(path: Path, old: str, new: str) -> None:
    """Replace `old`, which must be there, in a text file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# ---- the site


def test_every_chapter_and_every_notebook_is_a_page(pages):
    sources = [*CHAPTERS.glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    wanted = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in sources}
    assert wanted | {"index.html", "search.html"} == set(pages)


def test_a_page_loads_nothing_from_another_site(site, pages):
    loaded = [
        f"{page}: {tag[attribute]}"
        for page, soup in pages.items()
        for name, attribute in LOADED.items()
        for tag in soup.find_all(name, attrs={attribute: True})
        if re.match(r"(https?:)?//", tag[attribute])
    ]
    for style in [*site.rglob("*.css"), *site.rglob("*.html")]:
        addresses = re.findall(r"""url\(\s*['"]?((?:https?:)?//[^)]+)|@import\s+['"]((?:https?:)?//[^'"]+)""", read(style))
        loaded += [f"{style.name}: {address}" for address in addresses]
    assert not loaded, "readers may have no network, and nobody else needs to know what they read"


def read(path: Path) -> str:
    """A text file of the site."""
    return path.read_text(encoding="utf-8")


def test_every_link_inside_the_site_leads_to_a_page_and_an_anchor_that_are_there(site, pages):
    broken = []
    for page, soup in pages.items():
        for tag in soup.find_all(["a", "link", "script", "img"]):
            address, anchor = urldefrag(tag.get("href") or tag.get("src") or "")
            if re.match(r"[a-z]+:", address) or not (address or anchor):
                continue
            target = (site / page).parent / unquote(address.split("?")[0]) if address else site / page
            there = target.resolve().is_file()
            if there and anchor and target.suffix == ".html":
                goal = pages[target.resolve().relative_to(site.resolve()).as_posix()]
                there = goal.find(id=unquote(anchor)) is not None
            if not there:
                broken.append(f"{page} -> {tag.get('href') or tag.get('src')}")
    assert not broken


def test_no_id_is_on_a_page_twice(pages):
    for page, soup in pages.items():
        ids = [tag["id"] for tag in soup.find_all(id=True)]
        assert sorted(ids) == sorted(set(ids)), page


def test_the_pages_do_not_tell_where_they_were_built(site):
    places = {str(ROOT), str(site), str(Path.home()) + "/", sys.prefix}
    for path in [*site.rglob("*.html"), site / "searchindex.js"]:
        text = read(path)
        assert not [place for place in places if place in text], path.name


def test_the_contents_link_to_every_chapter_that_exists_and_mark_the_others_as_to_come():
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", read(CHAPTERS / "index.md"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 19))
    for number, title in rows:
        page = next((path.name for path in CHAPTERS.glob(f"{int(number):02}-*.md")), None)
        if page is None:
            assert title.endswith(" (to come)"), f"chapter {number} has no page"
        else:
            heading = read(CHAPTERS / page).splitlines()[0].removeprefix("# ")
            assert title == f"[{heading}]({page})", f"chapter {number} exists: link to it by its title"


# ---- the glossary


def test_every_term_of_the_glossary_is_used_in_a_chapter(pages):
    used = {
        urldefrag(link["href"]).fragment
        for page, soup in pages.items()
        if re.match(r"chapters/\d\d-", page)
        for link in soup.find_all("a", href=re.compile(r"glossary\.html#term-"))
    }
    assert used
    unused = []
    for definition in pages["chapters/glossary.html"].select("dl.glossary > dd"):
        names = words_of(definition)
        if not used & {name["id"] for name in names}:
            unused += [name.get_text().strip("#¶ \n") for name in names]
    assert not unused, "a term that no chapter uses: use it, or take it out of the glossary"


def words_of(definition):
    """The dt elements that a dd of the glossary defines: those right before it."""
    names, sibling = [], definition.find_previous_sibling()
    while sibling is not None and sibling.name == "dt":
        names.append(sibling)
        sibling = sibling.find_previous_sibling()
    return names


def test_the_glossary_is_in_alphabetical_order():
    terms = re.findall(r"(?:^|\n\n)(\S.*)\n(?:\S.*\n)?  ", read(CHAPTERS / "glossary.md").split("```{glossary}\n")[1])
    assert len(terms) > 30
    assert terms == sorted(terms, key=str.lower)


def test_the_glossary_links_back_to_the_place_that_introduces_a_term(sample, tmp_path):
    site = book.build(sample, tmp_path / "out").parent
    soup = BeautifulSoup(read(site / "chapters" / "glossary.html"), "html.parser")
    link = soup.select_one("p.introduced a")
    assert link["href"] == "05-sample.html#define-kv-cache"
    assert 'id="define-kv-cache"' in read(site / "chapters" / "05-sample.html")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("{define}`KV cache`", "{define}`VK cache`", "VK cache"),
        ("{term}`KV cache`", "{term}`VK cache`", "VK cache"),
        ("{term}`KV cache`", "{define}`KV cache`", "introduced already"),
        (":pyobject: KVCache.append", ":pyobject: KVCache.gone", "KVCache.gone"),
        ("/minillm/kv_cache.py", "/minillm/gone.py", "gone.py"),
        ("{ref}`ex-5-1`", "{ref}`ex-5-9`", "ex-5-9"),
        ("01-first.md#the-arithmetic", "01-first.md#gone", "gone"),
        ("../notebooks/05-sample.ipynb", "../notebooks/gone.ipynb", "gone.ipynb"),
        (":name: fig-curve\n", "", "needs a :name:"),
        ("figures/positions-computed.svg", "figures/gone.svg", "gone.svg"),
    ],
)
def test_a_chapter_with_a_mistake_fails_the_build_and_the_mistake_is_named(
    sample, tmp_path, capfd, old, new, complaint
):
    edit(sample / "chapters" / "05-sample.md", old, new)
    with pytest.raises(InputError, match="not built"):
        book.build(sample, tmp_path / "out")
    errors = capfd.readouterr().err
    assert "05-sample.md" in errors
    assert complaint in errors
    assert not (tmp_path / "out").exists(), "half a book is no book"
