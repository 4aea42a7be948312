"""Configuration of the Sphinx build."""

from importlib.metadata import version as installed_version

project = "skmahal"
author = "the skmahal developers"
copyright = f"2026, {author}"
release = installed_version("skmahal")
version = release

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
]
exclude_patterns = ["_build"]
nitpicky = False

autosummary_generate = True
autodoc_default_options = {"members": True, "inherited-members": True}
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "skmahal"
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}
html_show_sourcelink = False
