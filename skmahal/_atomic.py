"""All of a change, or nothing of it."""

from contextlib import contextmanager


@contextmanager
def as_before_on_error(estimator):
    """Give an estimator its attributes back where the block raises."""
    before = estimator.__dict__.copy()
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise
