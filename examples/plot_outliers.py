"""
Outliers in a signal, within a window of time
=============================================

A sensor measures a pulse. The pulse becomes faster and its level drifts, which is
normal; a few beats are not. Each point is a stretch of the signal, and a point is an
outlier if it lies in a much thinner region than its neighbours: if its local outlier
factor is high.

A detector that was fitted once takes the drift for outliers. One that holds a window of
the latest points follows it. Each new point replaces the oldest, and only the scores of
points near the two are computed again.
"""

import matplotlib.pyplot as plt
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from skmahal import MahalanobisOutlierDetector

plt.style.use("tableau-colorblind10")
N_TIMES, LENGTH, WINDOW = 5000, 40, 500

# %%
# The signal
# ----------
#
# Six beats are wrong: three come upside down, and three are missing. A point is the
# last 40 values, taken at every second time.

rng = np.random.default_rng(0)
time = np.arange(N_TIMES)
phase = np.cumsum(np.linspace(1, 1.8, N_TIMES)) / 40
beat, pulse = phase.astype(int), np.exp(-((phase % 1 - 0.5) ** 2) / 0.01)
upside_down, missing = rng.choice(np.arange(40, beat[-1]), (2, 3), replace=False)
sign = np.select([np.isin(beat, upside_down), np.isin(beat, missing)], [-1, 0], 1)
signal = sign * pulse + 0.7 * time / N_TIMES + 0.04 * rng.normal(size=N_TIMES)

X = sliding_window_view(signal, LENGTH)[::2]
ends = time[LENGTH - 1 :: 2]
wrong = sliding_window_view((sign < 1) & (pulse > 0.5), LENGTH)[::2].any(axis=1)

# %%
# Two detectors
# -------------
#
# Both begin with the same points, and score each point when it comes. Only one of them
# then takes it in.

fixed = MahalanobisOutlierDetector(novelty=True).fit(X[:WINDOW])
window = MahalanobisOutlierDetector(novelty=True, max_points=WINDOW).fit(X[:WINDOW])
factors = {"fitted once": [], "window": []}
for x in X[WINDOW:]:
    factors["fitted once"].append(-fixed.score_samples([x])[0])
    factors["window"].append(-window.score_samples([x])[0])
    window.partial_fit([x])

limit, wrong, ends = -window.offset_, wrong[WINDOW:], ends[WINDOW:]
print("alarms       wrong beats found  share of other points")
for name, found in factors.items():
    alarms = np.array(found) > limit
    beats = np.isin([*upside_down, *missing], beat[ends[alarms]]).sum()
    print(f"{name:12s} {beats} of 6 {alarms[~wrong].mean():32.1%}")

new = window.n_searches_ - WINDOW
print(
    f"\nsearches for neighbours: {new / len(ends):.1f} per new point; a fit: {WINDOW}"
)

# %%
# Signal and scores
# -----------------
#
# The factors of the detector that was fitted once grow with the drift, until it raises
# an alarm all the time. Those of the window stay near 1, except at wrong beats.

figure, (above, below) = plt.subplots(
    2, 1, sharex=True, figsize=(8, 5), layout="constrained"
)
above.plot(time, signal, lw=0.6, color="0.35")
above.plot(time, np.where(sign < 1, signal, np.nan), color="C5", label="wrong beats")
above.set(ylabel="signal")
below.plot(ends, factors["fitted once"], lw=1, color="C1", label="fitted once")
below.plot(ends, factors["window"], lw=1, color="C0", label="window")
below.axhline(limit, color="0.2", lw=1, ls="--", label="alarm above")
below.set(yscale="log", ylabel="local outlier factor", xlabel="time")
below.set_yticks([1, 2, 4, 8], [1, 2, 4, 8])
below.minorticks_off()
above.legend(loc="upper left")
below.legend(loc="upper left", ncols=3)
plt.show()
