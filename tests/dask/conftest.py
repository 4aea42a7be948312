"""A cluster of worker processes, started once, and small problems for it."""

import numpy as np
import pytest

pytest.importorskip("distributed", reason="dask is not installed")

import dask
from distributed import Client, LocalCluster

SETTINGS = {
    # Workers that are killed on purpose come back at once, and tasks survive it.
    "distributed.scheduler.allowed-failures": 20,
    "distributed.comm.timeouts.connect": "60s",
    "distributed.worker.daemon": True,
    "skmahal.timeout": "5 minutes",
}


@pytest.fixture(scope="session")
def cluster():
    """Two worker processes, each with one thread."""
    with (
        dask.config.set(SETTINGS),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs="CRITICAL",
            memory_limit=0,
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="session")
def connected(cluster):
    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture
def client(connected):
    """A client of the cluster when all its workers are there."""
    connected.wait_for_workers(2, timeout=60)
    return connected


@pytest.fixture
def rng():
    return np.random.default_rng(0)
