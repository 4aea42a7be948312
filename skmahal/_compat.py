"""Private or versioned APIs of other libraries, gathered in one place.

The rest of the package imports these names from here, so that a change in a
dependency is answered in one file.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

__all__ = ["HasMethods", "Interval", "StrOptions", "fit_context"]
