"""The book builds into pages that load nothing from elsewhere, whose links lead somewhere, and whose parts agree."""

import importlib
import importlib.util
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
from minillm.exercises.manifest import EXERCISES

# Tools of the site that are a version behind Sphinx's own interface: theirs to mend, and nothing that a reader sees.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Check CHANGES for Sphinx API modifications")

ROOT = Path(__file__).parents[1]
CHAPTERS = ROOT / "chapters"
LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
}


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
        addresses = re.findall(
            r"""url\(\s*['"]?((?:https?:)?//[^)]+)|@import\s+['"]((?:https?:)?//[^'"]+)""", read(style)
        )
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
        assert_unique_ids(soup, page)


def assert_unique_ids(soup: BeautifulSoup, page: str) -> None:
    """No two elements of the page share an id."""
    ids = [tag["id"] for tag in soup.find_all(id=True)]
    assert sorted(ids) == sorted(set(ids)), page


def test_the_pages_do_not_tell_where_they_were_built(site):
    places = {str(place) for place in (ROOT, site, Path.home()) if place != Path("/")}
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


def test_an_exercise_has_the_number_that_its_anchor_says(sample, pages, tmp_path):
    built = BeautifulSoup(
        read(book.build(sample, tmp_path / "out").parent / "chapters" / "05-sample.html"), "html.parser"
    )
    assert len(built.select("div.exercise")) == 2
    assert_unique_ids(built, "the sample")
    for soup in [*pages.values(), built]:
        for exercise in soup.select("div.exercise"):
            number = re.match(r"Exercise (\d+)\.(\d+)", exercise.get_text().strip())
            assert number, exercise["id"]
            assert exercise["id"] == f"ex-{number[1]}-{number[2]}", "exercises are numbered in the order of the page"


def test_a_chapter_that_uses_everything_shows_it(sample, tmp_path):
    soup = BeautifulSoup(
        read(book.build(sample, tmp_path / "out").parent / "chapters" / "05-sample.html"), "html.parser"
    )
    text = " ".join(soup.article.get_text().split())
    assert soup.h1.get_text().startswith("5. A chapter that uses everything")
    for shown in (
        "Figure 5.1 shows it, Listing 5.1 has its lines, Exercise 5.2 is about it",
        "from $2 to $3 per hour",
        "keys[:, :, start:end] = k",
    ):
        assert shown in text
    assert soup.select_one("figure#fig-curve svg[role=img]")["aria-label"].startswith("Positions computed")
    assert soup.details.summary.get_text().strip() == "Why is the query not cached?"


def test_of_a_console_example_the_copy_button_takes_what_is_typed_and_nothing_else(site, pages):
    """The button keeps lines that begin with the prompt, without it; where none does, it takes the whole block."""
    script = read(site / "_static" / "copybutton.js")
    assert "return formatCopyText(text, '$ ', false, true, true, false," in script, "prompt lines alone, no empty ones"
    blocks = [block.get_text() for soup in pages.values() for block in soup.select("div.highlight-console pre")]
    assert any(re.search(r"^ #  ", text, re.MULTILINE) for text in blocks), "a trace's table is in one"
    commands = [line for text in blocks for line in text.splitlines() if line.startswith("$ ")]
    assert len(commands) > 10
    assert all(re.match(r"\$ (python|docker|pytest|pip|minillm) ", line) for line in commands)


def test_what_scrolls_sideways_shows_at_which_edge_it_goes_on():
    css = read(CHAPTERS / "_static" / "book.css")
    shaded = re.search(r"\n([^{}]*)\{[^{}]*overflow-x: auto;[^{}]*var\(--fig-edge\)", css)
    assert shaded
    for wide in (".figure-scroll", "div.math", ".pst-scrollable-table-container"):
        assert wide in shaded[1], "a phone hides its scroll bars"


def test_next_goes_from_a_chapter_to_its_notebook_and_on_to_the_next_chapter(pages):
    page, order = "chapters/index.html", []
    while page:
        order.append(page)
        link = pages[page].select_one("a.right-next")
        page = link and (Path("/") / page).parent.joinpath(link["href"]).resolve().relative_to("/").as_posix()
    chapters = [one for one in order if re.match(r"chapters/\d\d-", one)]
    assert chapters == sorted(chapters)
    for notebook in [one for one in order if one.startswith("notebooks/0") and not one.startswith("notebooks/00")]:
        assert order[order.index(notebook) - 1].startswith(("chapters/" + notebook[10:13], "notebooks/00"))
    assert set(order) == {one for one in pages if re.match(r"(chapters|notebooks)/", one)}, "a page is not on the way"
    assert order.index("notebooks/00-by-hand.html") == order.index("chapters/01-the-journey.html") + 1
    back = pages["notebooks/05-the-kv-cache.html"].select_one("a.left-prev")
    assert back["href"].endswith("chapters/05-the-kv-cache.html")


def test_a_notebook_links_to_its_chapter_and_a_chapter_to_its_notebook(pages):
    for page, soup in pages.items():
        match = re.fullmatch(r"(chapters|notebooks)/(\d\d-.*)", page)
        other = match and ("notebooks/" if match[1] == "chapters" else "chapters/") + match[2]
        if other in pages:
            links = [urldefrag(link["href"]).url for link in soup.article.find_all("a", href=True)]
            assert f"../{other}" in links, page


def test_an_exercise_and_the_section_that_explains_it_link_to_each_other(pages):
    for exercise in [one for one in EXERCISES if one.section]:
        article = pages[exercise.chapter_path.replace(".md", ".html")].article
        own = article.find(id=exercise.anchor)
        assert own.find("a", href=f"#{exercise.section}"), f"{exercise.id} does not link back"
        assert article.find(id=exercise.section), exercise.section
        links = article.find_all("a", href=f"#{exercise.anchor}", class_="reference")
        assert links, f"nothing in the chapter links to {exercise.id}"


# ---- the glossary


def test_every_term_of_the_glossary_is_used_in_a_chapter(pages):
    chapters = [soup for page, soup in pages.items() if re.match(r"chapters/\d\d-", page)]
    text = " ".join(soup.article.get_text().lower() for soup in chapters)
    links = {urldefrag(link["href"]).fragment for soup in chapters for link in soup.find_all("a", href=True)}
    assert any(link.startswith("term-") for link in links)
    unused = []
    for definition in pages["chapters/glossary.html"].select("dl.glossary > dd"):
        names = words_of(definition)
        words = [name.get_text().strip("#¶ \n").lower() for name in names]
        linked = any(name["id"] in links for name in names)
        if not linked and not any(re.search(rf"\b{re.escape(word)}s?\b", text) for word in words):
            unused += words
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


# ---- figures


@pytest.fixture
def extension(monkeypatch):
    """The module behind `figure-svg`."""
    monkeypatch.syspath_prepend(CHAPTERS / "_ext")
    return importlib.import_module("figure_svg")


HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 50"><title>A line</title><desc>It rises.</desc>'


def test_a_drawing_is_named_scaled_and_has_ids_of_its_own(extension):
    body = '<clipPath id="c"/><path id="p" clip-path="url(#c)" stroke="var(--fig-ink)"/><use href="#p"/></svg>'
    svg = BeautifulSoup(extension.inline_svg(HEAD + body, prefix="fig-a"), "html.parser").svg
    assert svg["aria-label"] == "A line"
    assert svg.find(id=svg["aria-describedby"]).get_text() == "It rises."
    assert svg.find("title") is None, "browsers show it as a tooltip over the whole drawing"
    assert svg.path["id"] == "fig-a-p"
    assert svg.path["clip-path"] == "url(#fig-a-c)"
    assert svg.use["href"] == "#fig-a-p"
    assert "max-width:100px" in svg["style"]


@pytest.mark.parametrize(
    ("svg", "complaint"),
    [
        (HEAD + '<path fill="#fff"/></svg>', "fixed colour"),
        (HEAD + '<path style="stroke: black"/></svg>', "fixed colour"),
        (HEAD + "<style>path { fill: red }</style></svg>", "<style>"),
        (HEAD + '<use href="other.svg#p"/></svg>', "outside of the file"),
        (HEAD.replace("<title>A line</title>", "") + "</svg>", "<title>"),
        (HEAD.replace("It rises.", " ") + "</svg>", "<desc>"),
        (HEAD.replace(' viewBox="0 0 100 50"', "") + "</svg>", "viewBox"),
        (HEAD, "well-formed"),
    ],
)
def test_a_drawing_that_would_not_follow_the_theme_or_be_read_aloud_is_refused(extension, svg, complaint):
    with pytest.raises(extension.FigureError, match=re.escape(complaint)):
        extension.inline_svg(svg, prefix="fig-a")


def test_the_plots_are_those_that_their_script_draws(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(CHAPTERS / "figures")
    script = importlib.import_module("make")
    script.make(tmp_path)
    for name in script.PLOTS:
        committed, drawn = (CHAPTERS / "figures" / name).read_bytes(), (tmp_path / name).read_bytes()
        assert committed == drawn, f"{name}: run `python chapters/figures/make.py` and look at it"


def test_a_plot_with_a_colour_of_its_own_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(CHAPTERS / "figures")
    themed_plot = importlib.import_module("themed_plot")
    with themed_plot.plot_of() as figure:
        figure.subplots().plot([1, 2], color="red")
        with pytest.raises(ValueError, match="#ff0000"):
            themed_plot.themed_svg(figure, "A line", "It rises.")


def test_every_colour_that_a_figure_uses_is_defined_in_both_themes():
    css = read(CHAPTERS / "_static" / "book.css")
    light, dark = (
        set(re.findall(r"(--fig-[\w-]+):", block)) for block in re.findall(r"data-theme.*?\{(.*?)\}", css, re.S)
    )
    assert light == dark
    for path in (CHAPTERS / "figures").glob("*.svg"):
        assert set(re.findall(r"var\((--fig-[\w-]+)", read(path))) <= light, path.name


def test_words_of_a_figure_are_not_drawn_in_the_colour_of_its_grid():
    for path in (CHAPTERS / "figures").glob("*.svg"):
        faint = re.findall(r"<text[^>]*fill=.var\(--fig-grid\)[^>]*>[^<]*", read(path))
        assert not faint, f"{path.name}: nobody can read them, least of all in the dark"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_words_of_a_figure_can_be_read_in_both_themes(theme):
    block = re.search(rf'data-theme="{theme}"\] \{{(.*?)\}}', read(CHAPTERS / "_static" / "book.css"), re.DOTALL)
    assert block
    colours = dict(re.findall(r"--fig-([\w-]+):.*?(#[0-9a-f]{6})", block[1]))
    grounds = {name for name in colours if name.startswith("fill-")} | {"paper"}
    for ground in grounds:
        for words in ("ink", "muted", *(f"accent-{number}" for number in range(1, 5))):
            ratio = contrast(colours[words], colours[ground])
            assert ratio >= 4.5, f"{words} on {ground} in {theme}: {ratio:.2f}, below what WCAG asks of text"


def contrast(one: str, other: str) -> float:
    """The ratio of two colours' luminances as WCAG 2 defines it: 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb", 0 to 1."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# ---- the verb


def test_the_verb_prints_the_first_page_alone_on_stdout_and_an_earlier_build_is_replaced(sample, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "minillm.book", "--out", str(out)]
    for _ in range(2):
        done = subprocess.run(command, cwd=sample, capture_output=True, text=True, encoding="utf-8", check=False)
        assert (done.returncode, done.stdout.strip()) == (0, str((out / "index.html").resolve())), done.stderr
        assert not (out / "stale.html").exists()
        write(out / "stale.html", "a page of a chapter that is gone")
    assert {path.name for path in tmp_path.iterdir()} == {"project", "out"}, "nothing is left beside the site"


def test_a_folder_that_holds_something_else_is_left_alone(sample, tmp_path, capsys, monkeypatch):
    (tmp_path / "letters").mkdir()
    write(tmp_path / "letters" / "dear.txt", "dear")
    write(tmp_path / "letters" / ".buildinfo", "Sphinx leaves this in anybody's site")
    monkeypatch.setattr(book, "ROOT", sample)
    assert book.main(["--out", str(tmp_path / "letters")]) == 2
    assert "choose a new or empty folder" in capsys.readouterr().err
    assert read(tmp_path / "letters" / "dear.txt") == "dear"


def test_a_link_is_not_replaced(sample, tmp_path, capsys, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(book, "ROOT", sample)
    assert book.main(["--out", str(tmp_path / "link")]) == 2
    assert "is a link" in capsys.readouterr().err


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert book.main(["--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert 'pip install -e ".[book]"' in error
    assert error.count("\n") == 1


def test_without_the_chapters_one_sentence_says_where_the_book_is(tmp_path):
    with pytest.raises(MissingError, match="no book at"):
        book.build(tmp_path, tmp_path / "out")
