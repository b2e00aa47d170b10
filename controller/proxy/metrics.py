"""Prometheus numbers of the requests to services."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from controller.proxy.view import Service, Traffic

_LABELS = ("service", "group")
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class MeteredTraffic:
    """Counts for Prometheus, and hands each count on."""

    def __init__(self, counted: Traffic) -> None:
        self._counted = counted
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "fairlead_service_requests",
            "Requests that a replica got; a failed one had no answer, or one from 500 on.",
            (*_LABELS, "result"),
            registry=registry,
        )
        self._seconds = Histogram(
            "fairlead_service_request_seconds",
            "From the request to the end of its answer, without WebSockets.",
            _LABELS,
            registry=registry,
            buckets=_BUCKETS,
        )
        self._in_flight = Gauge(
            "fairlead_service_requests_in_flight",
            "Requests and open streams of replicas.",
            _LABELS,
            registry=registry,
        )

    def began(self, service: Service, group: str) -> None:
        self._in_flight.labels(service.name, group).inc()
        self._counted.began(service, group)

    def ended(self, service: Service, group: str, *, seconds: float | None, failed: bool) -> None:
        self._in_flight.labels(service.name, group).dec()
        self._requests.labels(service.name, group, "failed" if failed else "ok").inc()
        if seconds is not None:
            self._seconds.labels(service.name, group).observe(seconds)
        self._counted.ended(service, group, seconds=seconds, failed=failed)

    def page(self) -> bytes:
        """Return the numbers in the text format of Prometheus."""
        return generate_latest(self._registry)
