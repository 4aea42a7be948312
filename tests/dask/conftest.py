"""Clusters of worker processes, each started once."""

import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

pytest.importorskip("distributed", reason="dask is not installed")

import dask
from distributed import Client, LocalCluster

SETTINGS = {
    # Tasks survive workers that are killed on purpose.
    "distributed.scheduler.allowed-failures": 20,
    "distributed.comm.timeouts.connect": "60s",
    "skmahal.timeout": "5 minutes",
}

# A new process then takes part of a second: it does not load numba.
WITHOUT_NUMBA = """
import skmahal._core.kernels
skmahal._core.kernels.find_spec = lambda name: None
"""


class Cluster(LocalCluster):
    """A local cluster that may lose a worker before it has heard of it.

    Dask's own then raises KeyError, hears of no other worker from that on, and raises
    the error again when it is closed.
    """

    def _update_worker_status(self, op, msg):
        with suppress(KeyError):
            super()._update_worker_status(op, msg)


@contextmanager
def started(n_workers=2, preload=()):
    """A cluster of processes with one thread each, and a client of it."""
    settings = {**SETTINGS, "distributed.worker.preload": list(preload)}
    with (
        dask.config.set(settings),
        Cluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs="CRITICAL",
            memory_limit=0,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def wait_for_two(client):
    """Wait until there are two workers.

    A nanny gives up if its process is killed while it starts; then there is another.
    """
    while len(client.scheduler_info()["workers"]) < 2:
        try:
            client.wait_for_workers(2, timeout=15)
        except TimeoutError:
            client.cluster.scale(len(client.cluster.worker_spec) + 1)
    time.sleep(0.2)


@pytest.fixture(scope="session")
def connected():
    with started(preload=[WITHOUT_NUMBA]) as client:
        yield client


@pytest.fixture
def client(connected):
    """A client of the cluster when all its workers are there."""
    wait_for_two(connected)
    return connected


@pytest.fixture(scope="session")
def compiled():
    """As `client`, of workers that have numba if it is installed."""
    with started() as client:
        yield client


@pytest.fixture
def rng():
    return np.random.default_rng(0)
