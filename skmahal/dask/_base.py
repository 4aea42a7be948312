"""What runs at the client: the state of the shards, tasks for them, and changes.

The client holds what is small: U, the sizes of the shards, and logs of recent changes.
A change makes a new :class:`State`, waits until all shards that it touches have it, and
puts it in place of the old one in one step. An error leaves the old one, and shards
that are ahead of it are brought back to it by their next task.
"""

import uuid
import warnings
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from threading import RLock
from typing import NamedTuple
from weakref import WeakValueDictionary, finalize

import dask
import dask.array as da
import numpy as np
from distributed import Client, Future, wait
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from skmahal import _metric_learner as learners
from skmahal._core import checks
from skmahal._core.metric import change_between, row_change
from skmahal._core.threads import slices
from skmahal._estimator import seed_from, validated
from skmahal.neighbors import SketchedMahalanobisNeighbors as LocalNeighbors
from skmahal.neighbors._base import in_type

from ._shards import Behind, Chunk, Edit, Log, Wanted, answer, same

# Steps of the metric that a worker can follow which has missed them.
_MOST_STEPS = 16

# Edited rows from which on they are made part of the chunk, if they are this share.
_FEW_EDITS, _MUCH_EDITED = 256, 1 / 8

# Rows of a NumPy array that are worth a shard of their own.
_LEAST_ROWS = 1000

# How often a task is tried again after an error that its arguments have not caused.
_RETRIES = 2

# Parameters of the local class that all estimators have here, beside `client`.
PARAMETERS = LocalNeighbors().get_params().keys() - {"radius", "max_points"}


class Shard(NamedTuple):
    """A chunk on the cluster, how many points it has with its edits, and these."""

    chunk: Future
    n: int
    edits: Log

    def edited(self, stamp, edit, n):
        """The shard after an edit, with n points."""
        return self._replace(n=n, edits=self.edits.added(stamp, edit))

    @property
    def is_much_edited(self):
        """Whether the edits are to be made part of the chunk."""
        size = sum(edit.size for edit in self.edits.changes)
        return size > max(_FEW_EDITS, _MUCH_EDITED * self.n)


class State(NamedTuple):
    """All shards in order of position, U or None, and the last steps of the metric."""

    shards: tuple
    U: np.ndarray | None
    steps: Log

    @property
    def starts(self):
        """Positions at which shards begin, and the number of points at the end."""
        return np.concatenate([[0], np.cumsum([shard.n for shard in self.shards])])

    def located(self, positions):
        """Shards that some positions are in: triples of number, places and positions.

        `places` says which of the positions they are; the last are within the shard.
        """
        starts = self.starts
        owners = np.searchsorted(starts, positions, side="right") - 1
        for number in np.unique(owners).tolist():
            places = np.flatnonzero(owners == number)
            yield number, places, positions[places] - starts[number]


class OwnCluster:
    """A cluster of threads in this process, which is closed when nothing holds it."""

    def __init__(self):
        self.client = Client(n_workers=1, processes=False, dashboard_address=":0")
        finalize(self, self.client.close)


# The cluster of all estimators that were given no client.
_OWN = WeakValueDictionary()

# Held while the filters of warnings are others.
_FILTERS = RLock()


class ShardedBase(BaseEstimator):
    """Points on the workers of a cluster, and the changes of points and metric."""

    # Whether targets are labels of classes.
    _has_labels = False

    @property
    def components_(self):
        """U of the metric as it is now, in float64; a copy."""
        check_is_fitted(self, "_state")
        U = self._state.U
        return np.eye(self.n_features_in_) if U is None else U.copy()

    @property
    def n_samples_fit_(self):
        """Number of points."""
        check_is_fitted(self, "_state")
        return int(self._state.starts[-1])

    @property
    def shard_sizes_(self):
        """Number of points of each shard, a tuple."""
        check_is_fitted(self, "_state")
        return tuple(shard.n for shard in self._state.shards)

    def __len__(self):
        """Number of points; 0 before `fit`."""
        return self.n_samples_fit_ if "_state" in vars(self) else 0

    def __bool__(self):
        return True

    def __sklearn_clone__(self):
        # The client is not a value: a copy of the estimator uses the same one.
        parameters = {
            name: clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
            if name != "client"
        }
        return type(self)(**parameters, client=self.client)

    def __getstate__(self):
        if "_state" in vars(self):
            raise TypeError(
                "An index on a cluster cannot be pickled: save what to_local() returns."
            )
        return super().__getstate__()

    def close(self):
        """Release the points, and the cluster that was started for them, if any."""
        for name in ("_state", "_metric", "client_", "_own"):
            vars(self).pop(name, None)

    # --- the cluster ------------------------------------------------------------------

    def _open(self):
        """The client of the parameter, the current one, or that of an own cluster."""
        client = self.client
        if client is None:
            own = _OWN.get("cluster")
            if own is not None and own.client.status != "running":
                own = None
            try:
                client = Client.current()
            except ValueError:
                own = _OWN["cluster"] = own or OwnCluster()
                client = own.client
            if own is not None and client is own.client:
                # It is closed with the last estimator that holds it.
                self._own = own
        return usable(client)

    def _hand_over(self, client):
        """Let another client hold the chunks, while the present one still does."""
        if self.client_.status != "running":
            raise RuntimeError(
                "The points were released when their client was closed: fit the index "
                "again, and next time change the client before it is closed."
            )
        name = f"skmahal-{uuid.uuid4().hex}"
        held = [shard.chunk for shard in self._state.shards]
        self.client_.publish_dataset(held, name=name)
        try:
            chunks = client.get_dataset(name)
            waited(client, chunks)
        except KeyError:
            raise ValueError(
                "client must be one of the cluster that has the points. To use another "
                "cluster, fit the index again."
            ) from None
        finally:
            self.client_.unpublish_dataset(name)
        pairs = zip(self._state.shards, chunks, strict=True)
        shards = tuple(shard._replace(chunk=chunk) for shard, chunk in pairs)
        self._state = self._state._replace(shards=shards)
        self._metric, self.client_ = (None, None), client

    def _fitted(self):
        """The present state; another client takes over its chunks first."""
        check_is_fitted(self, "_state")
        client = usable(self.client_ if self.client is None else self.client)
        if client is not self.client_:
            with self._lock:
                if client is not self.client_:
                    self._hand_over(client)
        return self._state

    def _made_local(self, n_shards):
        """The local estimator that shards have, without its metric."""
        parameters = {name: getattr(self, name) for name in PARAMETERS}
        parameters |= {"metric_learner": None, "metric": "minkowski"}
        parameters |= {"metric_params": None, "random_state": self._seed}
        # All shards together then break a promise with probability delta.
        parameters |= {"delta": self.delta / n_shards}
        return LocalNeighbors(**parameters)

    def _metric_on(self, client, state):
        """U as a task that carries it, for workers that need all of it."""
        held, stamp = self._metric, state.steps.stamp
        if held[0] != stamp:
            with large_tasks():
                key = f"skmahal-metric-{uuid.uuid4().hex}"
                held = self._metric = stamp, client.submit(same, state.U, key=key)
        return held[1]

    def _ask_all(self, state, method, *args, brings=0):
        """Answers of all shards to one call; without a method, they only follow."""
        calls = [(number, method, *args) for number in range(len(state.shards))]
        return self._ask(calls, state, brings)

    def _ask(self, calls, state, brings=0):
        """Answers of shards to calls: number of the shard, method, *arguments.

        Tasks bring the last change if `brings` is 1, and all that may be needed if it
        is None. Tasks for which a worker needs more are sent again.
        """
        found = self._sent(calls, state, brings)
        late = [place for place, one in enumerate(found) if one is Behind]
        if late:
            again = self._sent([calls[place] for place in late], state, None)
            for place, one in zip(late, again, strict=True):
                found[place] = one
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    def _sent(self, calls, state, brings):
        """Answers, of which some may be errors or :class:`Behind`."""
        client, U, local = self.client_, None, None
        if brings is None:
            U, local = self._metric_on(client, state), self._local
        futures, numbers = [], [number for number, *_ in calls]
        for number, method, *args in calls:
            chunk, _, edits = state.shards[number]
            wanted = Wanted(edits.last(brings), state.steps.last(brings))
            given = chunk, wanted, U, local, method, *args
            futures.append(self._submit(client, method or "follow", answer, *given))
        starts = state.starts
        names = [
            f"shard {number} (points {starts[number]} to {starts[number + 1] - 1})"
            for number in numbers
        ]
        answers = gathered(client, futures, names)
        for number, (address, _) in zip(numbers, answers, strict=True):
            self._homes[state.shards[number].chunk.key] = [address]
        return [found for _, found in answers]

    def _submit(self, client, name, function, chunk, *args):
        """A task for a chunk, on the worker that is known to have its index, if any."""
        home = self._homes.get(chunk.key)
        how = {"workers": home, "allow_other_workers": home is not None}
        how |= {"key": f"skmahal-{name}-{uuid.uuid4().hex}", "retries": _RETRIES}
        with large_tasks():
            return client.submit(function, chunk, *args, **how)

    # --- points -----------------------------------------------------------------------

    def _begin(self, X, y):
        """Chunks of the points, the metric, and local indexes on the workers."""
        self._lock, self._stamps, self._homes = RLock(), count(), {}
        self._metric, self._followed = (None, None), None
        self._seed = self.random_state
        if self._seed is not None and not isinstance(self._seed, int):
            self._seed = int(seed_from(self._seed)[0])
        self.client_ = self._open()
        X = self._points(X, reset=True)
        U = self._given_metric(X.shape[1])
        shards, looks = self._chunks(X, y)
        self._most_rows = max(shard.n for shard in shards)
        # Parameters that are set later are for the next fit.
        self._local = self._made_local(len(shards))
        self.dtype_ = looks[0].dtype
        state = State(tuple(shards), U, Log((next(self._stamps),)))
        self._ask_all(state, None, brings=None)
        self._state = state
        return looks

    def _given_metric(self, d):
        """U of the parameters, or None for the Euclidean metric."""
        names = ("metric_learner", "metric", "metric_params")
        local = LocalNeighbors(**{name: getattr(self, name) for name in names})
        given = local._given_metric()
        if hasattr(given, "fit") and not isinstance(given, FrozenEstimator):
            raise ValueError(
                "metric_learner must be an array, a dictionary, or a fitted estimator "
                "in sklearn.frozen.FrozenEstimator: an estimator is not fitted on a "
                f"cluster, got {type(given).__name__}. Fit it to a sample of points."
            )
        name = "metric_params" if given is self.metric_params else "metric_learner"
        return learners.resolve_components(given, None, None, d, name)[0]

    def _points(self, X, reset=False):
        """Points or queries: a Dask array in chunks of rows, or a NumPy array.

        Unless `reset`, they are in the type of the points that there are.
        """
        frame = None
        if hasattr(X, "to_dask_array"):
            frame, X = X._meta, X.to_dask_array(lengths=True)
        if not isinstance(X, da.Array):
            X = validated(self, X, reset=reset, dtype=(np.float64, np.float32))
            return X if reset else in_type(X, self.dtype_)
        if X.ndim != 2:
            raise ValueError(f"X must have two dimensions, got shape {X.shape}.")
        if np.isnan(X.shape).any():
            raise ValueError(
                "X has chunks of unknown sizes: call X.compute_chunk_sizes() first."
            )
        if X.numblocks[1] > 1:
            raise ValueError(
                f"X must have chunks of whole rows, and its columns are split into "
                f"{X.numblocks[1]}: call X.rechunk({{1: -1}}) first."
            )
        if not len(X) or X.dtype.kind == "c":
            raise ValueError(
                f"X must have a row or more of real numbers, got shape {X.shape} and "
                f"dtype {X.dtype}."
            )
        seen = X if frame is None else frame
        validate_data(self, seen, reset=reset, skip_check_array=True)
        return X if reset else X.astype(self.dtype_)

    def _chunks(self, X, y, most=None):
        """Shards of new points, which are checked, and a look at each.

        An array is split into chunks of `most` rows; None is one for every thread.
        """
        client, make = self.client_, dask.delayed(Chunk, pure=False)
        if isinstance(X, da.Array):
            pairs = zip(X.to_delayed()[:, 0], X.chunks[0], strict=True)
            blocks, sizes = zip(*(pair for pair in pairs if pair[1]), strict=True)
        else:
            threads = sum(client.ncores().values())
            most = most or max(_LEAST_ROWS, -(-len(X) // max(1, threads)))
            blocks = [X[here] for here in slices(len(X), most)]
            sizes = list(map(len, blocks))
        targets = _target_blocks(y, sizes)
        with large_tasks():
            rest = X.dtype, self._has_labels
            made = [make(*each, *rest) for each in zip(blocks, targets, strict=True)]
            chunks = client.compute(made, retries=_RETRIES)
        names = [f"chunk {number}" for number in range(len(chunks))]
        looks = gathered(client, client.map(Chunk.look, chunks, pure=False), names)
        warn_without_lineage(client, chunks)
        ends = np.cumsum([0, *sizes])
        for number, (problem, shape, *_) in enumerate(looks):
            if problem is None and shape != (sizes[number], X.shape[1]):
                problem = f"has shape {shape}, expected {(sizes[number], X.shape[1])}"
            if problem is not None:
                rows = f"rows {ends[number]} to {ends[number + 1] - 1}"
                raise ValueError(f"X: chunk {number} ({rows}) {problem}.")
        shards = [
            Shard(chunk, size, Log((next(self._stamps),)))
            for chunk, size in zip(chunks, sizes, strict=True)
        ]
        return shards, looks

    def _append(self, X, y=None):
        """Add validated points behind the last, in its shard or in new ones."""
        with self._lock:
            state = self._fitted()
            *others, last = state.shards
            if isinstance(X, da.Array) or last.n + len(X) > self._most_rows:
                shards, looks = self._chunks(X, y, self._most_rows)
                self._install([*state.shards, *shards])
                return looks
            edit, n = Edit("append", X=X, y=y), last.n + len(X)
            self._install([*others, last.edited(next(self._stamps), edit, n)])
            return []

    def _replace(self, indices, X, y=None):
        """Replace the points at positions by validated ones."""
        with self._lock:
            state = self._fitted()
            n = int(state.starts[-1])
            at = checks.as_indices("indices", indices, n, unique=True, masks=True)
            if len(X) != len(at):
                raise ValueError(
                    f"X has {len(X)} rows, expected {len(at)}, one for each of indices."
                )
            shards = list(state.shards)
            for number, places, inside in state.located(at):
                new = None if y is None else y[places]
                edit, shard = Edit("replace", inside, X[places], new), shards[number]
                shards[number] = shard.edited(next(self._stamps), edit, shard.n)
            self._install(shards)

    def remove_points(self, indices):
        """Remove points; later ones move up, as with `numpy.delete`. O(n) per column.

        Parameters
        ----------
        indices : int, array-like of int, or array-like of bool
            Positions of the points, or a mask. At least one point must be left.

        Returns
        -------
        self : object
        """
        self._fitted()
        with self._lock:
            state = self._fitted()
            n = int(state.starts[-1])
            at = np.unique(checks.as_indices("indices", indices, n, masks=True))
            if len(at) == n:
                raise ValueError(f"indices would remove every one of the {n} points.")
            shards = list(state.shards)
            for number, _, inside in state.located(at):
                shard, left = shards[number], shards[number].n - len(inside)
                edited = shard.edited(next(self._stamps), Edit("remove", inside), left)
                shards[number] = edited
            self._install([shard for shard in shards if shard.n])
        return self

    def _install(self, shards):
        """Bring shards that are not as before to a new state, and take that."""
        old, state = set(map(id, self._state.shards)), self._state
        state = state._replace(shards=tuple(shards))
        touched = [at for at, shard in enumerate(shards) if id(shard) not in old]
        self._ask([(number, None) for number in touched], state, brings=1)
        long = [number for number in touched if shards[number].is_much_edited]
        made = []
        for number in long:
            chunk, _, edits = shards[number]
            edit = Chunk.edited, chunk, edits
            made.append(self._submit(self.client_, "chunk", *edit))
        with suppress(TimeoutError, CancelledError):
            waited(self.client_, made)
        for number, chunk in zip(long, made, strict=True):
            # Where it has failed, the edits are kept until the next change.
            if chunk.status == "finished":
                self._homes[chunk.key] = self._homes[shards[number].chunk.key]
                edits = shards[number].edits.last(0)
                shards[number] = shards[number]._replace(chunk=chunk, edits=edits)
        for key in set(list(self._homes)) - {shard.chunk.key for shard in shards}:
            self._homes.pop(key, None)
        self._state = state._replace(shards=tuple(shards))

    # --- the metric -------------------------------------------------------------------

    def update_metric(self, metric=None, *, rows=None, additive=False, low_rank=None):
        """Change the metric; every shard follows without being built again.

        A change of rank p sends p (k + d) numbers to every shard, which then reads its
        points once. Any other new U is sent to every worker, and used from scratch.

        Parameters
        ----------
        metric, rows, additive, low_rank : as in skmahal
            The new metric, or the change of U; see
            :meth:`skmahal.SketchedMahalanobisNeighbors.update_metric`.

        Returns
        -------
        self : object
        """
        self._fitted()
        with self._lock:
            U, followed = self.components_, None
            change = checks.as_change(metric, rows, additive, low_rank, *U.shape)
            if change.low_rank is None and change.rows is None:
                followed = self._follow(metric, U)
            else:
                new, step = learners.components_after(U, change), change.low_rank
                if step is None:
                    step = row_change(change.rows, (new - U)[change.rows], len(U))
                self._move(step, new)
            self._followed = followed
        return self

    def _follow(self, metric, U):
        """Take the metric of a learner or an array; returns the state of a learner."""
        token = learners.token_of(metric)
        new = learners.components_of(metric, "metric", self.n_features_in_)
        steps, token = learners.steps_since(self._followed, metric, token)
        if steps is None and new.shape == U.shape:
            eps = float(np.finfo(self.dtype_).eps) / 4
            steps = change_between(U, new, max(1, len(U) // 4), eps)
        if steps is None:
            self._move(None, new)
        elif steps.rank:
            self._move(tuple(steps), new)
        return token

    def _move(self, step, U):
        """Bring all shards to a new U, by a low-rank step or as a whole."""
        state, stamp = self._state, next(self._stamps)
        steps = Log((stamp,))
        if step is not None:
            step = tuple(np.ascontiguousarray(part, dtype=np.float64) for part in step)
            steps = state.steps.added(stamp, step).last(_MOST_STEPS)
        state = state._replace(U=U, steps=steps)
        self._ask_all(state, None, brings=None if step is None else 1)
        self._state = state


def usable(client):
    """The client, if it is connected and not asynchronous; an error if it is not."""
    if client.status != "running":
        raise RuntimeError(
            f"client must be connected to a cluster, and its status is "
            f"{client.status!r}: pass another one to set_params(client=...)."
        )
    if client.asynchronous:
        raise ValueError("client must not be asynchronous.")
    return client


def waited(client, futures):
    """Wait for tasks, as long as the configuration says."""
    limit = dask.config.get("skmahal.timeout", "1 hour")
    seconds = None if limit is None else dask.utils.parse_timedelta(limit)
    with client.as_current():
        wait(futures, timeout=seconds)


def gathered(client, futures, names):
    """Results of tasks, or a TimeoutError with the name of one that is late."""
    try:
        waited(client, futures)
    except CancelledError:
        raise RuntimeError(
            "The points were released, as by Client.restart(): fit the index again."
        ) from None
    except TimeoutError:
        tasks = zip(names, futures, strict=True)
        late = next(name for name, future in tasks if not future.done())
        client.cancel(futures)
        limit = dask.config.get("skmahal.timeout", "1 hour")
        raise TimeoutError(
            f"{late} has not answered within {limit}, the value of skmahal.timeout in "
            "the configuration of Dask."
        ) from None
    return client.gather(futures)


@contextmanager
def large_tasks():
    """A context without Dask's warning about data in tasks.

    Data that are in a task are never lost, and that is what they are there for. The
    filters are those of all threads, so that one at a time may change them.
    """
    with _FILTERS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        yield


def warn_without_lineage(client, chunks):
    """Warn if chunks depend on data that were put on workers, not made by tasks."""
    keys = [chunk.key for chunk in chunks]
    lost = client.run_on_scheduler(keys_without_tasks, keys)
    if lost:
        warnings.warn(
            f"X: {len(lost)} chunks have no lineage, as after Client.scatter. If "
            "their worker is lost, so are they. Make them by tasks, for example by "
            "reading files.",
            UserWarning,
            stacklevel=5,
        )


def keys_without_tasks(keys, dask_scheduler=None):
    """Keys that depend on data for which the scheduler has no task."""
    lost = []
    for key in keys:
        waiting, seen = [dask_scheduler.tasks.get(key)], set()
        while waiting:
            task = waiting.pop()
            if task is None or task.run_spec is None:
                lost.append(key)
                break
            new = [one for one in task.dependencies if one.key not in seen]
            seen.update(one.key for one in new)
            waiting += new
    return lost


def _target_blocks(y, sizes):
    """Targets of blocks of these sizes, None for each if there are none."""
    if y is None:
        return [None] * len(sizes)
    if hasattr(y, "to_dask_array"):
        y = y.to_dask_array(lengths=True)
    if len(y) != sum(sizes):
        raise ValueError(f"y has {len(y)} targets, expected {sum(sizes)}.")
    if isinstance(y, da.Array):
        y = y.rechunk({0: tuple(sizes), **{axis: -1 for axis in range(1, y.ndim)}})
        return list(y.to_delayed().ravel())
    ends = np.cumsum([0, *sizes])
    return [y[a:b] for a, b in pairwise(ends)]
