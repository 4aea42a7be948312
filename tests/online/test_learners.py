"""The learners follow their formulas, for as long as a stream lasts."""

import numpy as np
import pytest
from scipy import linalg
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

import skmahal
from skmahal.online import LEGO, POLA, OnlineITML, _factor

from .streams import DENSE, LEARNERS, TARGETS, pair_stream, relative_error

EVERY = pytest.mark.parametrize("name", LEARNERS)


def beginning(name, init, d):
    """A learner, and the dense formulas from the same start."""
    if init == "array":
        init = np.random.default_rng(5).normal(size=(4, d)) / 2
    U = {"identity": np.eye(d), "zeros": np.zeros((d, d))}.get(str(init), init)
    return clone(LEARNERS[name]).set_params(init=init), DENSE[name](U.T @ U)


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 24])
@pytest.mark.parametrize(
    ("name", "init"),
    [(name, init) for name in LEARNERS for init in ("identity", "array")]
    + [("POLA", "zeros")],
)
def test_a_thousand_steps_agree_with_the_dense_formulas(name, init, d):
    learner, oracle = beginning(name, init, d)
    pairs, y = pair_stream(1_000, d)
    for batch in np.split(np.arange(1_000), 50):
        learner.partial_fit(pairs[batch], y[batch])
        for (a, b), sign in zip(pairs[batch], y[batch], strict=True):
            oracle.step(a - b, sign)
        assert relative_error(learner, oracle) < 1e-8
    assert learner.version_ > 100
    if name == "POLA":
        assert learner.b_ == pytest.approx(oracle.b, rel=1e-8)


@pytest.mark.parametrize("name", ["LEGO", "OnlineITML"])
@pytest.mark.parametrize(("small", "limit"), [(0, 1e-5), (10**6, 1e-6)])
def test_steps_in_single_precision_agree_with_the_dense_formulas(
    name, small, limit, monkeypatch
):
    monkeypatch.setattr(_factor, "_SMALL", small)
    learner, oracle = beginning(name, "identity", 24)
    pairs, y = pair_stream(2_000, 24, dtype=np.float32)
    learner.fit(pairs, y)
    for z, sign in zip(pairs[:, 0] - pairs[:, 1], y, strict=True):
        oracle.step(z.astype(np.float64), sign)
    assert learner.components_.dtype == np.float32
    assert relative_error(learner, oracle) < limit


def low_rank_pairs(n, d, noise, seed):
    """Pairs of three dimensions, and of more by a little."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 2, 3)) @ rng.normal(size=(3, d)) / np.sqrt(3 * d)
    points += noise * rng.normal(size=points.shape)
    return points, np.where(rng.random(n) < 0.5, 1, -1)


@pytest.mark.slow
@pytest.mark.parametrize("init", ["identity", "zeros"])
@pytest.mark.parametrize("noise", [0, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("seed", range(3))
def test_pola_is_right_where_a_is_singular_but_for_a_little(init, noise, seed):
    learner, oracle = beginning("POLA", init, 20)
    pairs, y = low_rank_pairs(200, 20, noise, seed)
    learner.partial_fit(pairs, y)
    for (a, b), sign in zip(pairs, y, strict=True):
        oracle.step(a - b, sign)
    # Rounding errors under a root, in each of 200 steps.
    assert relative_error(learner, oracle) < 200 * np.sqrt(np.finfo(float).eps)


@pytest.mark.parametrize("seed", range(3))
def test_pola_is_right_in_single_precision_where_pairs_come_again(seed):
    rng = np.random.default_rng(seed)
    few = (rng.normal(size=(5, 2, 20)) / np.sqrt(20)).astype(np.float32)
    which, y = rng.integers(5, size=300), np.where(rng.random(300) < 0.5, 1, -1)
    learner, oracle = beginning("POLA", "zeros", 20)
    learner.partial_fit(few[which], y)
    for (a, b), sign in zip(few[which].astype(float), y, strict=True):
        oracle.step(a - b, sign)
    assert relative_error(learner, oracle) < 1e-6


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize(
    "steps", [10_000, pytest.param(100_000, marks=pytest.mark.stress)]
)
def test_the_metric_is_semidefinite_after_many_steps(name, steps, count):
    learner, oracle = beginning(name, "identity", 2)
    pairs, y = pair_stream(steps, 2, seed=3)
    y = np.where(np.arange(steps) % 7 == 0, -y, y)
    learner.fit(pairs, y)
    for z, sign in zip(pairs[:, 0] - pairs[:, 1], y, strict=True):
        oracle.step(z, sign)
    values = linalg.eigvalsh(learner.get_mahalanobis_matrix())
    assert learner.n_steps_ == steps
    assert learner.version_ > 0.3 * steps
    assert values[-1] > 0
    assert values[0] >= -1e-14 * values[-1]
    assert relative_error(learner, oracle) < 1e-8
    count("learner steps", steps)


@EVERY
@pytest.mark.parametrize("small", [0, 10**6])
def test_a_batch_is_its_pairs_one_by_one(name, small, monkeypatch):
    monkeypatch.setattr(_factor, "_SMALL", small)
    pairs, y = pair_stream(120, 5)
    batch = clone(LEARNERS[name]).fit(pairs, y)
    single = clone(LEARNERS[name])
    for cut in np.split(np.arange(120), [1, 2, 30, 31, 90]):
        single.partial_fit(pairs[cut], y[cut])
    np.testing.assert_array_equal(single.components_, batch.components_)
    assert single.version_ == batch.version_
    assert single.threshold_ == batch.threshold_


@EVERY
def test_the_order_of_the_points_of_a_pair_does_not_matter(name):
    pairs, y = pair_stream(80, 4)
    learner = clone(LEARNERS[name]).fit(pairs, y)
    turned = clone(LEARNERS[name]).fit(pairs[:, ::-1], y)
    A = learner.get_mahalanobis_matrix()
    np.testing.assert_allclose(turned.get_mahalanobis_matrix(), A, rtol=1e-12)


@EVERY
def test_float32_stays_float32_and_follows_float64(name):
    pairs, y = pair_stream(400, 6)
    learner = clone(LEARNERS[name]).fit(pairs.astype(np.float32), y)
    double = clone(LEARNERS[name]).fit(pairs.astype(np.float32).astype(float), y)
    assert learner.components_.dtype == np.float32
    assert learner.transform(pairs[:, 0]).dtype == np.float32
    assert learner.updates_since(learner.state_token()).W.dtype == np.float32
    A, exact = learner.get_mahalanobis_matrix(), double.get_mahalanobis_matrix()
    # A step rounds A by a few units in the last place, and later ones keep that.
    steps = np.finfo(np.float32).eps * learner.version_
    assert np.linalg.norm(A - exact) < steps * np.linalg.norm(exact)


@EVERY
def test_similar_pairs_come_nearer_and_dissimilar_ones_part(name):
    learner = clone(LEARNERS[name]).fit(np.zeros((1, 2, 2)), [1])
    pair = np.array([[[0.0, 0.0], [1.2, 0.4]]])
    for sign in (1, -1):
        before = learner.pair_distance(pair)
        after = learner.partial_fit(pair, [sign]).pair_distance(pair)
        assert sign * (after - before) < 0


@pytest.mark.parametrize("name", ["LEGO", "OnlineITML"])
def test_pairs_that_are_where_they_should_be_change_nothing(name):
    near, far = [[0.0], [0.5]], [[0.0], [2.0]]
    learner = clone(LEARNERS[name]).fit([near, far], [1, -1])
    assert learner.version_ == 0
    assert learner.partial_fit([near, far], [-1, 1]).version_ == 2


@EVERY
def test_pairs_of_identical_points_are_skipped_and_counted(name):
    pairs, y = pair_stream(20, 3)
    learner = clone(LEARNERS[name]).fit(pairs, y)
    version, U = learner.version_, learner.components_
    learner.partial_fit(np.ones((4, 2, 3)), [1, -1, 1, -1])
    assert (learner.n_skipped_, learner.n_steps_) == (4, 20)
    assert learner.version_ == version
    np.testing.assert_array_equal(learner.components_, U)


def test_pola_counts_what_it_clips():
    learner = POLA().fit([[[0.0, 0.0], [0.1, 0.0]]], [1])
    assert learner.n_clipped_ == 0
    # Small steps along the first axis leave it less than the next one takes.
    learner = POLA(init=[[0.1, 0.0], [0.0, 3.0]]).fit([[[0, 0], [1.0, 1.0]]], [1])
    assert learner.n_clipped_ == 1
    values = linalg.eigvalsh(learner.get_mahalanobis_matrix())
    assert abs(values[0]) < 1e-14
    assert np.linalg.matrix_rank(learner.components_) == 1


def test_pola_keeps_its_threshold_at_one_or_more():
    pairs, _ = pair_stream(50, 3)
    learner = POLA().fit(pairs, np.full(50, -1))
    assert learner.b_ == 1
    assert learner.partial_fit(9 * pairs, np.full(50, 1)).b_ > 1
    assert learner.threshold_ == np.sqrt(learner.b_)


@pytest.mark.parametrize("learner", [LEGO(), OnlineITML()], ids=repr)
class TestTargets:
    def test_are_percentiles_of_the_first_batch(self, learner):
        pairs, y = pair_stream(50, 3)
        points = pairs.reshape(-1, 3)
        i, j = np.triu_indices(100, 1)
        distances = np.linalg.norm(points[i] - points[j], axis=1)
        learner = clone(learner).fit(pairs, y)
        expected = np.percentile(distances, (5, 95))
        np.testing.assert_allclose(learner.targets_, expected)
        assert learner.threshold_ == pytest.approx(expected.mean())
        learner.partial_fit(100 * pairs, y)
        np.testing.assert_allclose(learner.targets_, expected)

    def test_are_in_units_of_the_metric_to_start_from(self, learner):
        pairs, y = pair_stream(50, 3)
        one = clone(learner).fit(pairs, y)
        other = clone(learner).set_params(init=7 * np.eye(3)).fit(pairs, y)
        np.testing.assert_allclose(other.targets_, 7 * one.targets_)

    def test_of_a_stream_that_starts_small_come_from_its_first_points(self, learner):
        pairs, y = pair_stream(200, 3)
        learner = clone(learner)
        for t in range(200):
            learner.partial_fit(pairs[t : t + 1], y[t : t + 1])
        expected = clone(learner).fit(pairs[:32], y[:32]).targets_
        np.testing.assert_array_equal(learner.targets_, expected)

    def test_wait_for_two_points_that_differ(self, learner):
        learner = clone(learner).fit(np.ones((100, 2, 2)), np.ones(100))
        assert learner.targets_ is None
        assert np.isnan(learner.threshold_)
        learner.partial_fit([[[0.0, 0.0], [3.0, 4.0]]], [1])
        assert learner.targets_[1] >= 5 * 0.9

    def test_given_alone_are_kept_and_the_other_fits(self, learner):
        pairs, y = pair_stream(50, 3)
        high = clone(learner).set_params(similar_target=1e3).fit(pairs, y)
        np.testing.assert_array_equal(high.targets_, [1e3, 1e3])
        low = clone(learner).set_params(dissimilar_target=1e-3).fit(pairs, y)
        np.testing.assert_array_equal(low.targets_, [1e-3, 1e-3])

    def test_make_the_unit_of_the_features_irrelevant(self, learner):
        pairs, y = pair_stream(100, 3)
        one = clone(learner).fit(pairs, y).get_mahalanobis_matrix()
        other = clone(learner).fit(1e4 * pairs, y).get_mahalanobis_matrix()
        np.testing.assert_allclose(other, one, rtol=1e-9)


@EVERY
class TestMetric:
    def fitted(self, name):
        pairs, y = pair_stream(90, 4)
        return clone(LEARNERS[name]).fit(pairs, y), pairs, y

    def test_every_form_of_it_says_the_same(self, name):
        learner, pairs, _ = self.fitted(name)
        U, z = learner.components_, pairs[:, 0] - pairs[:, 1]
        expected = np.linalg.norm(z @ U.T, axis=1)
        np.testing.assert_allclose(learner.pair_distance(pairs), expected)
        np.testing.assert_array_equal(
            learner.pair_score(pairs), -learner.pair_distance(pairs)
        )
        np.testing.assert_array_equal(
            learner.decision_function(pairs), learner.pair_score(pairs)
        )
        A = learner.get_mahalanobis_matrix()
        squares = np.einsum("ni,ij,nj->n", z, A, z)
        np.testing.assert_allclose(expected**2, squares, rtol=1e-9)
        metric = learner.get_metric()
        assert metric(*pairs[0]) == pytest.approx(expected[0])
        assert metric(*pairs[0], squared=True) == pytest.approx(expected[0] ** 2)
        Z = learner.transform(pairs[:, 0]) - learner.transform(pairs[:, 1])
        np.testing.assert_allclose(np.linalg.norm(Z, axis=1), expected)

    def test_what_was_handed_out_stays_as_it_was(self, name):
        learner, pairs, y = self.fitted(name)
        U, metric = learner.components_, learner.get_metric()
        before, distance = U.copy(), metric(*pairs[0])
        learner.partial_fit(pairs, -y)
        np.testing.assert_array_equal(U, before)
        assert metric(*pairs[0]) == distance
        learner.fit(np.zeros((1, 2, 4)), [1]).components_[:] = 0
        assert learner.components_.any()

    def test_predictions_follow_the_threshold(self, name):
        learner, pairs, y = self.fitted(name)
        near = learner.pair_distance(pairs) <= learner.threshold_
        np.testing.assert_array_equal(learner.predict(pairs), np.where(near, 1, -1))
        assert learner.score(pairs, y) == roc_auc_score(y, learner.pair_score(pairs))

    def test_a_threshold_that_was_set_stays_until_the_next_fit(self, name):
        learner, pairs, y = self.fitted(name)
        own = learner.threshold_
        learner.set_threshold(123).partial_fit(pairs, y)
        assert learner.threshold_ == 123
        assert learner.fit(pairs, y).threshold_ == own

    def test_learners_are_scored_by_cross_validation(self, name):
        _, pairs, y = self.fitted(name)
        scores = cross_val_score(clone(LEARNERS[name]), pairs, y, cv=3)
        assert (scores > 0.5).all()


@pytest.mark.filterwarnings("ignore:'force_all_finite' was renamed:FutureWarning")
@pytest.mark.filterwarnings("ignore:Function stable_cumsum:FutureWarning")
def test_scores_are_those_of_metric_learn_for_the_same_metric():
    skmahal.enable_metric_learn()
    metric_learn = pytest.importorskip("metric_learn")
    pairs, y = pair_stream(60, 3)
    theirs = metric_learn.ITML(max_iter=1).fit(pairs, y)
    ours = LEGO(1e-300, init=theirs.components_, **TARGETS).fit(pairs, y)
    np.testing.assert_allclose(ours.pair_distance(pairs), theirs.pair_distance(pairs))
    np.testing.assert_allclose(ours.pair_score(pairs), theirs.pair_score(pairs))
    np.testing.assert_allclose(
        ours.get_mahalanobis_matrix(), theirs.get_mahalanobis_matrix()
    )
    assert ours.score(pairs, y) == pytest.approx(theirs.score(pairs, y))
    np.testing.assert_array_equal(
        ours.set_threshold(theirs.threshold_ * (1 + 1e-9)).predict(pairs),
        theirs.set_threshold(theirs.threshold_ * (1 + 1e-9)).predict(pairs),
    )


@pytest.mark.parametrize("learner", [LEGO(), OnlineITML(), POLA()], ids=repr)
def test_what_is_learned_from_labels_helps_neighbours(learner):
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=900)
    told = 1.5 * rng.normal(size=(4, 4))[y] + rng.normal(size=(900, 4))
    X = np.hstack([told, 2 * rng.normal(size=(900, 16))]) / 8
    train, test = slice(0, 600), slice(600, 900)
    learner = clone(learner).set_params(random_state=0).fit(X[train], y[train])

    def accuracy(Z):
        return KNeighborsClassifier().fit(Z[train], y[train]).score(Z[test], y[test])

    # At least half of what is lost by the features that do not tell comes back.
    assert accuracy(learner.transform(X)) > (accuracy(X) + accuracy(told)) / 2
