"""Types of public signatures."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse


class Learner(Protocol):
    """An estimator that learns a metric."""

    def fit(self, *args: Any, **kwargs: Any) -> Any: ...


# Points or queries, one per row: an array, a data frame, or a sparse matrix.
Rows: TypeAlias = ArrayLike | sparse.sparray | sparse.spmatrix

# The matrix U, a dictionary that says which matrix it is, or an estimator.
Metric: TypeAlias = ArrayLike | Mapping[str, ArrayLike] | Learner

Floats: TypeAlias = NDArray[np.floating[Any]]
Indices: TypeAlias = NDArray[np.intp]
# A number for one pair or query, and an array for several.
FloatOrFloats: TypeAlias = Any
RandomState: TypeAlias = int | np.random.RandomState | None

Auto: TypeAlias = Literal["auto"]
Candidates: TypeAlias = int | Literal["exact", "certified"]
ClassWeight: TypeAlias = Mapping[Any, float] | Literal["balanced"] | list[Any]
Engine: TypeAlias = Literal["enclosed", "sketched", "exact"]
MetricName: TypeAlias = Literal["minkowski", "euclidean", "l2", "mahalanobis"]
Mode: TypeAlias = Literal["connectivity", "distance"]
Power: TypeAlias = Literal[1, 2]
Preprocessor: TypeAlias = ArrayLike | Callable[[np.ndarray], ArrayLike]
Sketch: TypeAlias = Literal["gaussian", "rademacher", "countsketch", "srht"]
Strategy: TypeAlias = Literal["accuracy", "f_beta", "max_tpr", "max_tnr"]
Weights: TypeAlias = (
    Literal["uniform", "distance"] | Callable[[np.ndarray], np.ndarray] | None
)
