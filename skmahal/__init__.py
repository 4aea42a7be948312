"""Nearest neighbours under a Mahalanobis metric that keeps changing."""

from ._core.maintenance import MetricMaintenance

__version__ = "0.1.0.dev0"
__all__ = ["MetricMaintenance"]
