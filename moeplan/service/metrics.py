"""What Prometheus is told: requests as they pass, jobs and documents as the store has them."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from moeplan.service.store import Store
from moeplan.service.supervisor import Supervisor

__all__ = ["Metrics"]

_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Metrics of one server, in a registry of its own."""

    def __init__(self, store: Store, supervisor: Supervisor | None) -> None:
        self._registry = CollectorRegistry()
        labels = ("method", "route")
        self._requests = Counter(
            "moeplan_requests", "Requests.", (*labels, "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "moeplan_request_seconds",
            "Time to answer.",
            labels,
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Kept(store, supervisor))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; ``route`` is the path as it is declared, so that names are few."""
        known = method if method in ("GET", "HEAD", "POST", "DELETE", "PUT") else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)

    def text(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


class _Kept(Collector):
    """Looked up when asked."""

    def __init__(self, store: Store, supervisor: Supervisor | None) -> None:
        self._store = store
        self._supervisor = supervisor

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Jobs by state, documents by kind, workers."""
        jobs = GaugeMetricFamily("moeplan_jobs", "Jobs in the store.", labels=["state"])
        for state, count in self._store.jobs.counts().items():
            jobs.add_metric([state], count)
        yield jobs
        kept = GaugeMetricFamily("moeplan_documents", "Documents in the store.", labels=["kind"])
        for kind, count in self._store.documents.counts().items():
            kept.add_metric([kind], count)
        yield kept
        if self._supervisor is not None:
            yield GaugeMetricFamily(
                "moeplan_workers", "Workers of this server.", len(self._supervisor.pids())
            )
            yield GaugeMetricFamily(
                "moeplan_worker_restarts", "Workers that ended.", self._supervisor.restarts
            )

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing before it is asked: registering must not need the store."""
        return []
