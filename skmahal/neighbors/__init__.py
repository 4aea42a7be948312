"""Nearest neighbours under a Mahalanobis metric that keeps changing."""

from ._classification import SketchedMahalanobisClassifier
from ._graph import SketchedMahalanobisNeighborsTransformer
from ._outliers import MahalanobisOutlierDetector
from ._regression import SketchedMahalanobisRegressor
from ._unsupervised import SketchedMahalanobisNeighbors

__all__ = [
    "MahalanobisOutlierDetector",
    "SketchedMahalanobisClassifier",
    "SketchedMahalanobisNeighbors",
    "SketchedMahalanobisNeighborsTransformer",
    "SketchedMahalanobisRegressor",
]
