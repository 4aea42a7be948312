"""Online metric learning: one pair, one low-rank step of the metric."""

from ._itml import OnlineITML
from ._lego import LEGO
from ._pola import POLA

__all__ = ["LEGO", "POLA", "OnlineITML"]
