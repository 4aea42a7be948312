"""Nearest neighbours under a Mahalanobis metric that keeps changing.

Examples
--------
>>> import numpy as np
>>> from skmahal import SketchedMahalanobisNeighbors
>>> X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
>>> index = SketchedMahalanobisNeighbors(2).fit(X)
>>> index.kneighbors([[0.0, 0.0]], return_distance=False)
array([[0, 1]])
>>> index = index.update_metric([[5.0, 0.0]], rows=[0])
>>> index.kneighbors([[0.0, 0.0]], return_distance=False)
array([[0, 2]])
"""

from ._compat import enable_metric_learn
from ._core.compact import SketchesOnly
from ._core.kernels import warm_up
from ._core.maintenance import MetricMaintenance
from ._core.metric import components_from
from ._show_versions import show_versions
from .neighbors import (
    MahalanobisCentroidClassifier,
    MahalanobisOutlierDetector,
    SketchedMahalanobisClassifier,
    SketchedMahalanobisNeighbors,
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRadiusTransformer,
    SketchedMahalanobisRegressor,
)
from .seeding import sample_seeds
from .sketch import MahalanobisSketch

__version__ = "0.1.0"

__all__ = [
    "MahalanobisCentroidClassifier",
    "MahalanobisOutlierDetector",
    "MahalanobisSketch",
    "MetricMaintenance",
    "SketchedMahalanobisClassifier",
    "SketchedMahalanobisNeighbors",
    "SketchedMahalanobisNeighborsTransformer",
    "SketchedMahalanobisRadiusTransformer",
    "SketchedMahalanobisRegressor",
    "SketchesOnly",
    "components_from",
    "enable_metric_learn",
    "sample_seeds",
    "show_versions",
    "warm_up",
]
