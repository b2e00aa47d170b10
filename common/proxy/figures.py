"""Prometheus figures of the requests to services."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from common.proxy.view import Counted, Replica, Service, Traffic

_LABELS = ("service", "group")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class _Metered:
    def __init__(self, metered: MeteredTraffic, counted: Counted, labels: tuple[str, str]) -> None:
        self._metered = metered
        self._counted = counted
        self._labels = labels
        self._began = time.monotonic()
        metered.in_flight.labels(*labels).inc()

    def end(self, *, failed: bool = False, is_stream: bool = False) -> None:
        metered, labels = self._metered, self._labels
        metered.in_flight.labels(*labels).dec()
        metered.requests.labels(*labels, "failed" if failed else "ok").inc()
        if not is_stream:
            metered.seconds.labels(*labels).observe(time.monotonic() - self._began)
        self._counted.end(failed=failed, is_stream=is_stream)


class _Held:
    def __init__(self, gauge: Gauge, counted: Counted) -> None:
        self._gauge = gauge
        self._counted = counted
        gauge.inc()

    def end(self, *, failed: bool = False, is_stream: bool = False) -> None:
        self._gauge.dec()
        self._counted.end(failed=failed, is_stream=is_stream)


class MeteredTraffic:
    """Counts for Prometheus, and hands each count on."""

    def __init__(self, counted: Traffic) -> None:
        self._traffic = counted
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "fairlead_service_requests",
            "Requests that a replica got; a failed one had no answer, or one from 500 on.",
            (*_LABELS, "result"),
            registry=registry,
        )
        self.seconds = Histogram(
            "fairlead_service_request_seconds",
            "From the request to the end of its answer, without WebSockets.",
            _LABELS,
            registry=registry,
            buckets=_BUCKETS,
        )
        self.in_flight = Gauge(
            "fairlead_service_requests_in_flight",
            "Requests and open streams of replicas.",
            _LABELS,
            registry=registry,
        )
        self.held = Gauge(
            "fairlead_service_requests_held",
            "Requests that wait for a replica of a sleeping service.",
            ("service",),
            registry=registry,
        )

    def ejected(self, replica: Replica, seconds: float) -> None:
        self._traffic.ejected(replica, seconds)

    def begin(self, service: Service, replica: Replica | None) -> Counted:
        counted = self._traffic.begin(service, replica)
        if replica is None:
            return _Held(self.held.labels(service.name), counted)
        return _Metered(self, counted, (service.name, replica.group))

    def page(self) -> bytes:
        """Return the figures in the text format of Prometheus."""
        return generate_latest(self._registry)
