"""Side-by-side measurements against named peers; ``python -m benchmarks`` runs all."""
