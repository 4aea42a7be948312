"""All of a change, or nothing of it."""

from contextlib import contextmanager


@contextmanager
def as_before_on_error(estimator):
    """Give an estimator its attributes back where the block raises."""
    before = vars(estimator).copy()
    try:
        yield
    except BaseException:
        give_back(estimator, before)
        raise


def give_back(estimator, attributes):
    """Let an estimator have these attributes and no others."""
    vars(estimator).clear()
    vars(estimator).update(attributes)
