"""Configuration of the Sphinx build."""

import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx_gallery.sorting import ExplicitOrder

from skmahal import warm_up

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import drawings  # noqa: E402
import inventories  # noqa: E402

project = "skmahal"
author = "the skmahal developers"
copyright = f"2026, {author}"
release = installed_version("skmahal")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "_templates"]
default_role = "literal"

autosummary_generate = True
templates_path = ["_templates"]
toc_object_entries_show_parents = "hide"
# scikit-learn's docstrings of these refer to pages of its own documentation.
_requests = (
    "fit",
    "partial_fit",
    "predict",
    "predict_proba",
    "decision_function",
    "score",
    "transform",
)
_inherited = ["get_metadata_routing", "set_output"]
autodoc_default_options = {
    "members": True,
    "inherited-members": True,
    "exclude-members": ",".join(
        _inherited + [f"set_{method}_request" for method in _requests]
    ),
}
numpydoc_show_class_members = False
# Docstrings say more than types, and signatures stay short.
autodoc_typehints = "none"

# So that no example says that loops are being compiled.
warm_up()
_examples = "quick_start metric learned_metrics relevance_feedback online_metric stream"
_examples += " class_means outliers graph seeding recall accuracy paper adversary"
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "remove_config_comments": True,
    "within_subsection_order": ExplicitOrder(
        [*(f"plot_{name}.py" for name in _examples.split()), "*"]
    ),
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(__init__|demo)\.py",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("skmahal",),
    "reference_url": {"skmahal": None},
    "show_memory": False,
    "write_computation_times": False,
    "download_all_examples": False,
}

intersphinx_mapping = inventories.intersphinx_mapping(DOCS / "generated/inventories")
# Links are resolved in Python names only: "glossary" is a page of this site.
intersphinx_disabled_reftypes = ["std:*"]

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "skmahal"
html_favicon = "_static/icon.svg"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "github_url": "https://github.com/skmahal/skmahal",
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "install": [], "changes": [], "benchmarks": []}
html_show_sourcelink = False


def without_foreign_references(app, what, name, obj, options, lines):
    """Docstrings inherited from scikit-learn refer to pages of its documentation."""
    lines[:] = [re.sub(r":ref:`([^<`]*?) *<[^>]*>`", r"\1", line) for line in lines]


def breakable_names(app, pagename, templatename, context, doctree):
    """Let long names in titles and signatures break before capital letters."""
    name = r'(<h1>|<span class="sig-name descname"><span class="pre">)(\w{20,})'
    context["body"] = re.sub(
        name,
        lambda found: found[1] + re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", found[2]),
        context.get("body", ""),
    )


def setup(app):
    app.connect("html-page-context", breakable_names)
    drawings.draw_all(DOCS / "generated/drawings")
    app.connect("autodoc-process-docstring", without_foreign_references)
