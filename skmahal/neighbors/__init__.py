"""Nearest neighbours under a Mahalanobis metric that keeps changing."""

from ._centroid import MahalanobisCentroidClassifier
from ._classification import SketchedMahalanobisClassifier
from ._graph import (
    SketchedMahalanobisNeighborsTransformer,
    SketchedMahalanobisRadiusTransformer,
)
from ._outliers import MahalanobisOutlierDetector
from ._regression import SketchedMahalanobisRegressor
from ._unsupervised import SketchedMahalanobisNeighbors

__all__ = [
    "MahalanobisCentroidClassifier",
    "MahalanobisOutlierDetector",
    "SketchedMahalanobisClassifier",
    "SketchedMahalanobisNeighbors",
    "SketchedMahalanobisNeighborsTransformer",
    "SketchedMahalanobisRadiusTransformer",
    "SketchedMahalanobisRegressor",
]
