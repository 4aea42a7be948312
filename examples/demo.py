"""
Photographs, clicks and a metric that follows them
==================================================

A collection of images of handwritten digits, each taken under another light. Under the
Euclidean distance the nearest images are those with a similar light. Someone looks at
the neighbours of an image and clicks on two images: this one is different, that one is
the same. A metric is learned from the clicks, one small step at a time. The index
follows every step, and the next search is under the new metric.

The same searches are made by what there is otherwise: transform all images again, and
give them to scikit-learn or faiss.

Run it with ``make demo``, or ``python examples/demo.py --help``.
"""

import argparse
import sys
import tracemalloc
from importlib.util import find_spec
from time import perf_counter

import numpy as np
from scipy.ndimage import zoom
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors

from skmahal import SketchedMahalanobisNeighbors
from skmahal.online import OnlineITML

K = 10
SIDE = 20
N_TEST = 300
CHECKPOINTS = 6
ROUNDS_A_PEER = 10
DRAWN = (0, 2, 5, 8)

OURS = "skmahal"
SKLEARN = "transform + scikit-learn"
FAISS = "transform + faiss flat"


# %%
# The images
# ----------


def photographs(digits, n, rng):
    """n images of the digits, enlarged and shifted by up to a pixel, and their rows.

    The light is a random quadratic function of the place in the image.
    """
    large = zoom(digits, (1, SIDE / 8, SIDE / 8), order=1)
    rows = np.arange(n) % len(large)
    images = np.stack(
        [
            np.roll(large[row], shift, axis=(0, 1))
            for row, shift in zip(rows, rng.integers(-1, 2, (n, 2)), strict=True)
        ]
    ).reshape(n, -1)
    x = np.linspace(-1, 1, SIDE)
    forms = [1 + 0 * x, x, x**2]
    light = [np.outer(forms[i], forms[j]) for i in range(3) for j in range(3 - i)]
    strength = 0.4 * rng.standard_normal((n, len(light)))
    images = images + strength @ np.reshape(light, (len(light), -1))
    images += 0.05 * rng.standard_normal(images.shape)
    return images.astype(np.float32), rows


def collection(n, rng):
    """Images to search and their digits, and images of other originals as queries."""
    digits, labels = load_digits(return_X_y=True)
    digits = digits.reshape(-1, 8, 8) / 16
    order = rng.permutation(len(digits))
    test, train = order[:N_TEST], order[N_TEST:]
    X, rows = photographs(digits[train], n, rng)
    Q, _ = photographs(digits[test], N_TEST, rng)
    return X, labels[train][rows], Q, labels[test]


# %%
# Clicks
# ------


def clicks(X, labels, row, shown, rng):
    """Pairs of images and whether they show the same digit: 1 or -1.

    The nearest image of another digit, and some image of the same digit.
    """
    other = next((i for i in shown if labels[i] != labels[row]), None)
    same = rng.choice(np.flatnonzero(labels == labels[row]))
    pairs, signs = [X[[row, same]]], [1]
    if other is not None:
        pairs, signs = [X[[row, other]], *pairs], [-1, *signs]
    return np.stack(pairs), signs


# %%
# Searching again after a step
# ----------------------------


def with_scikit_learn(X, U, Q):
    """Transform all images, and search them by brute force."""
    index = NearestNeighbors(n_neighbors=K, algorithm="brute", n_jobs=-1)
    return index.fit(X @ U.T).kneighbors(Q @ U.T, return_distance=False)


def with_faiss(X, U, Q):
    """Transform all images, and search a flat index of faiss."""
    import faiss

    index = faiss.IndexFlatL2(len(U))
    index.add(X @ U.T)
    return index.search(Q @ U.T, K)[1]


def peers():
    """What can be compared with, by name."""
    found = {SKLEARN: with_scikit_learn}
    if find_spec("faiss") is not None:
        found[FAISS] = with_faiss
    return found


def timed(function, *args):
    """Seconds that a call takes, and its result."""
    start = perf_counter()
    result = function(*args)
    return perf_counter() - start, result


def follow(index, learner, query):
    """Let the index follow the learner, and search it."""
    return index.update_metric(learner).kneighbors(query, return_distance=False)


def same_digit(index, labels, Q, q_labels):
    """Share of the neighbours of the queries that show the same digit."""
    found = index.kneighbors(Q, return_distance=False)
    return (labels[found] == q_labels[:, None]).mean()


def agreement(index, X, Q):
    """Share of the neighbours that are those of brute force by scikit-learn."""
    mine = index.kneighbors(Q, return_distance=False)
    theirs = with_scikit_learn(X, index.components_, Q)
    return np.mean([np.isin(a, b).mean() for a, b in zip(mine, theirs, strict=True)])


# %%
# The story
# ---------


class Session:
    """Rounds of a query, two clicks on its neighbours, and a step of the metric."""

    def __init__(self, n, rng):
        self.rng, self.peers = rng, peers()
        self.seconds = {name: [] for name in (OURS, *self.peers)}
        self.X, self.labels, self.Q, self.q_labels = collection(n, rng)
        self.index = SketchedMahalanobisNeighbors(K, random_state=0, n_jobs=-1)
        self.index.fit(self.X)
        self.learner = OnlineITML(gamma=2)
        self.curve, self.agreed = [], []
        # The first calls load and compile, and are not timed.
        follow(self.index, np.eye(self.X.shape[1], dtype=np.float32), self.X[:1])
        self.index.kneighbors(self.Q)
        self.drawn = [np.flatnonzero(self.q_labels == digit)[0] for digit in DRAWN]
        self.before = self.gallery()

    def round(self, against_peers):
        """One query, its clicks, and the search after the step."""
        row = int(self.rng.integers(len(self.X)))
        query = self.X[row : row + 1]
        shown = self.index.kneighbors(query, K, return_distance=False)[0]
        pairs, signs = clicks(self.X, self.labels, row, shown, self.rng)
        before = getattr(self.learner, "version_", 0)
        self.learner.partial_fit(pairs, signs)
        seconds, _ = timed(follow, self.index, self.learner, query)
        if self.learner.version_ > before:
            self.seconds[OURS].append(seconds)
        if against_peers:
            for name, search in self.peers.items():
                U = self.learner.components_
                self.seconds[name].append(timed(search, self.X, U, query)[0])

    def check(self):
        """Note how many neighbours show the digit of the query, and are exact."""
        share = same_digit(self.index, self.labels, self.Q, self.q_labels)
        self.curve.append((getattr(self.learner, "n_steps_", 0), share))
        self.agreed.append(agreement(self.index, self.X, self.Q))

    def gallery(self):
        """Neighbours of one query of each drawn digit, under the metric as it is."""
        return self.index.kneighbors(self.Q[self.drawn], 8, return_distance=False)


def memory(X):
    """Bytes that an index holds, its copy of the images included."""
    tracemalloc.start()
    try:
        index = SketchedMahalanobisNeighbors(K, random_state=0).fit(X)
        index.kneighbors(X[:1])
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


class Bar:
    """A progress bar on standard error, if that is a terminal."""

    def __init__(self, total, width=30):
        self.total, self.width, self.live = total, width, sys.stderr.isatty()

    def show(self, done, text):
        if self.live:
            filled = self.width * done // self.total
            bar = "#" * filled + "." * (self.width - filled)
            print(f"\r\033[K[{bar}] {text}", end="", file=sys.stderr, flush=True)

    def clear(self):
        if self.live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def run(n, rounds):
    """All rounds, with a line of the table at every checkpoint."""
    bar = Bar(rounds)
    bar.show(0, "making the images; the first run compiles for 15 s")
    session = Session(n, np.random.default_rng(0))
    bar.clear()
    print(
        f"{n:,} images of digits, {SIDE} × {SIDE} = {session.X.shape[1]} features, "
        "each under another light.\nA round: look at the "
        f"{K} neighbours of an image, click on two images (different, same),\n"
        "learn a step of the metric from the clicks, search again.\n"
    )
    print(f"{'clicks':>7}{'neighbours of the same digit':>31}{'as brute force':>17}")
    marks = set(np.linspace(0, rounds, CHECKPOINTS, dtype=int).tolist())
    sparse = max(1, rounds // ROUNDS_A_PEER)
    for done in range(rounds + 1):
        if done in marks:
            session.check()
            bar.clear()
            (count, share), agreed = session.curve[-1], session.agreed[-1]
            print(f"{count:>7}{share:>30.1%} {agreed:>16.2%}", flush=True)
        if done < rounds:
            bar.show(done, f"round {done + 1} of {rounds}")
            session.round(against_peers=done % sparse == 0)
    bar.clear()
    return session


def report(session):
    """Times and memory, ours beside those of the peers."""
    X = session.X
    held = {name: 2 * X.nbytes for name in session.peers} | {OURS: memory(X)}
    ours = np.median(session.seconds[OURS])
    print(f"\n{'step and search, median':<28}{'time':>10}{'':>10}{'memory':>10}")
    for name, seconds in session.seconds.items():
        median = np.median(seconds)
        print(
            f"{name:<28}{1e3 * median:>7.1f} ms{median / ours:>9.1f}×"
            f"{held[name] / 1e6:>7.0f} MB"
        )
    print(
        "\nMemory: skmahal holds the images and codes of them. The others hold the "
        "images and\nthe transformed images."
    )
    if FAISS not in session.peers:
        print("faiss is not installed; `pip install faiss-cpu` adds it to the table.")


def save_picture(session, path):
    """Neighbours before and after, the share of the same digit, and the times."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(11, 6.2), layout="constrained")
    FigureCanvasAgg(fig)
    top, bottom = fig.subfigures(2, 1, height_ratios=(1.5, 1))
    last = session.curve[-1][0]
    titles = ["Euclidean neighbours", f"neighbours after {last} clicks"]
    for part, found, title in zip(
        top.subfigures(1, 2), (session.before, session.gallery()), titles, strict=True
    ):
        draw_neighbours(part, session, found, title)
    left, right = bottom.subplots(1, 2)
    draw_curve(left, session.curve)
    draw_times(right, session.seconds)
    fig.savefig(path, dpi=120)


def draw_neighbours(part, session, found, title):
    """A row for each query: the query, and its neighbours, framed by right or wrong."""
    part.suptitle(title, fontsize=11)
    axes = part.subplots(len(found), 1 + found.shape[1])
    for line, query, near in zip(axes, session.drawn, found, strict=True):
        images = [session.Q[query], *session.X[near]]
        right = session.labels[near] == session.q_labels[query]
        colours = ["black", *np.where(right, "#1f8b4c", "#c0392b")]
        for ax, image, colour in zip(line, images, colours, strict=True):
            ax.imshow(image.reshape(SIDE, SIDE), cmap="gray_r")
            ax.set(xticks=[], yticks=[])
            for spine in ax.spines.values():
                spine.set(color=colour, linewidth=2.5)
        line[0].set_ylabel("query", fontsize=8)


def draw_curve(ax, curve):
    """How many of the neighbours show the digit of the query, against clicks."""
    ax.plot(*zip(*curve, strict=True), "o-", color="#1f6f8b")
    ax.set(xlabel="clicks", ylabel="neighbours of the same digit", ylim=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)


def draw_times(ax, seconds):
    """Time of a step of the metric and a search."""
    names = list(seconds)[::-1]
    times = [1e3 * np.median(seconds[name]) for name in names]
    bars = ax.barh(names, times, color=["#c98a3a"] * (len(names) - 1) + ["#1f6f8b"])
    ax.bar_label(bars, [f"{time:.1f} ms" for time in times], padding=3)
    ax.margins(x=0.2)
    ax.set_xlabel("milliseconds of a step of the metric and a search")
    ax.spines[["top", "right"]].set_visible(False)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Search images under a metric that is learned from clicks."
    )
    parser.add_argument("--images", type=int, default=20_000, help="default: 20,000")
    parser.add_argument("--rounds", type=int, default=75, help="default: 75")
    parser.add_argument("--out", default="demo.png", help="picture (default: demo.png)")
    options = parser.parse_args(arguments)
    session = run(options.images, options.rounds)
    report(session)
    if find_spec("matplotlib") is None:
        print(
            "`pip install matplotlib`, and the demonstration draws a picture as well."
        )
    else:
        save_picture(session, options.out)
        print(f"Picture: {options.out}")


if __name__ == "__main__":
    main()
