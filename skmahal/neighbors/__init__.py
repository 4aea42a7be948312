"""Nearest neighbours under a Mahalanobis metric that keeps changing."""

from ._unsupervised import SketchedMahalanobisNeighbors

__all__ = ["SketchedMahalanobisNeighbors"]
