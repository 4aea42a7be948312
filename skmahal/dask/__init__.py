"""The index on a Dask cluster, for more points than one machine holds.

The classes have the names and parameters of those for one machine, and a `client`.
"""

from skmahal._compat import import_optional

for _name in ("dask.array", "distributed"):
    import_optional(_name, "dask", "skmahal.dask")

from ._estimators import (  # noqa: E402
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisRegressor,
)

__all__ = [
    "SketchedMahalanobisClassifier",
    "SketchedMahalanobisNeighbors",
    "SketchedMahalanobisRegressor",
]
