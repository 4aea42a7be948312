"""Inventories of other projects, so that links to them need no network.

Intersphinx downloads a list of the names that a project documents. Here the lists are
written by the build: that of scikit-learn from the installed release, and those of
other projects from a few names. The addresses are those that their pages have.
"""

import zlib
from pathlib import Path

from sklearn.utils.discovery import all_displays, all_estimators, all_functions

PROJECTS = {
    "metric-learn": (
        "http://contrib.scikit-learn.org/metric-learn/",
        "generated/{name}.html#{name}",
        ["metric_learn.LMNN", "metric_learn.ITML", "metric_learn.NCA"],
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        "reference/generated/{name}.html#{name}",
        ["numpy.cov", "numpy.delete", "numpy.load", "numpy.memmap", "numpy.ndarray"],
    ),
    "scipy": (
        "https://docs.scipy.org/doc/scipy/",
        "reference/generated/{name}.html#{name}",
        ["scipy.sparse.csr_array", "scipy.spatial.distance.mahalanobis"],
    ),
}


def public_names():
    """Dotted names of the classes and functions that scikit-learn documents.

    >>> "sklearn.neighbors.NearestNeighbors" in public_names()
    True
    """
    members = [*all_estimators(), *all_functions(), *all_displays()]
    return [
        f"{member.__module__.partition('._')[0]}.{name}" for name, member in members
    ]


def write_inventory(path, project, pages, names):
    """Write the names in the format of ``objects.inv``, version 2."""
    lines = [
        f"{name} py:{'class' if name.rpartition('.')[2][0].isupper() else 'function'} "
        f"1 {pages.format(name=name)} -\n"
        for name in names
    ]
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    path.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))


def intersphinx_mapping(folder):
    """Write one inventory per project into a folder; the value for Sphinx."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scikit_learn = (
        "https://scikit-learn.org/stable/",
        "modules/generated/{name}.html#{name}",
        public_names(),
    )
    projects = {"scikit-learn": scikit_learn, **PROJECTS}
    for project, (_, pages, names) in projects.items():
        write_inventory(folder / f"{project}.inv", project, pages, names)
    return {
        project: (address, str(folder / f"{project}.inv"))
        for project, (address, _, _) in projects.items()
    }
