"""Numerical core: NumPy and SciPy only, no knowledge of scikit-learn."""
