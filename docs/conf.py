"""Configuration of the Sphinx build."""

import re
from importlib.metadata import version as installed_version

from sphinx_gallery.sorting import ExplicitOrder

from skmahal import warm_up

project = "skmahal"
author = "the skmahal developers"
copyright = f"2026, {author}"
release = installed_version("skmahal")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx-mathjax-offline",
    "numpydoc",
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
    "show_memory": False,
    "min_reported_time": 3600,
    "download_all_examples": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "skmahal"
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}
html_show_sourcelink = False


def without_foreign_references(app, what, name, obj, options, lines):
    """Docstrings inherited from scikit-learn refer to pages of its documentation."""
    lines[:] = [re.sub(r":ref:`([^<`]*?) *<[^>]*>`", r"\1", line) for line in lines]


def setup(app):
    app.connect("autodoc-process-docstring", without_foreign_references)
