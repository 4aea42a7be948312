"""Online metric learning: every pair of points is one low-rank step of the metric."""

from ._logdet import LEGO, OnlineITML
from ._pola import POLA

__all__ = ["LEGO", "POLA", "OnlineITML"]
