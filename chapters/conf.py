"""How Sphinx makes a site of the book: `minillm book` builds it with this file.

The source directory is the repository's root, not this folder: chapters/ and notebooks/ are both inside it, and a
chapter includes the engine's own lines by their path from the root (`/minillm/kv_cache.py`). Nothing is copied.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "minillm"
author = "the minillm authors"
copyright = "the minillm authors, Apache-2.0"
language = "en"
root_doc = "chapters/index"

include_patterns = ["chapters/*.md", "notebooks/[0-9][0-9]-*.ipynb"]
exclude_patterns = [".*", "**/.*", "build", "dist", "weights", "venv"]  # folders that need no walk
templates_path = ["_templates"]

extensions = [
    "myst_nb",
    "sphinx_exercise",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",  # its module has dashes in its name
    "chapter_numbers",
    "console_dollar",
    "exercise_ids",
    "figure_svg",
    "reading_order",
    "terms",
]

# Markdown
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_dmath_allow_space = False  # so that "from $2 to $3" stays money
myst_dmath_allow_digits = False
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are shown with the outputs that they were committed with
nb_merge_streams = True

# Numbers: chapter_numbers.py turns "the 2nd figure of the book" into "Figure 5.2" in chapter 5.
numfig = True
numfig_secnum_depth = 0
numfig_format = {"figure": "Figure %s", "code-block": "Listing %s", "table": "Table %s", "section": "Section %s"}

# HTML
html_theme = "sphinx_book_theme"
html_title = "minillm: a textbook you can run"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["book.css"]
html_additional_pages = {"index": "to-the-book.html"}  # the site's root leads to chapters/index.html
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_theme_options = {
    "navbar_persistent": [],  # the theme's sidebar has the search already
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "use_source_button": False,
    "footer_content_items": ["copyright.html"],
}
copybutton_prompt_text = "$ "  # of a console example, the lines after a prompt are copied, without it, and no others
copybutton_copy_empty_lines = False
copybutton_line_continuation_character = "\\"
