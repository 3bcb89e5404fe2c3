"""What Prometheus asks for."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counts of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "maxmatch_requests_total", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "maxmatch_request_seconds", "Time to an answer.", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.batches = Histogram(
            "maxmatch_batch_size", "Requests answered together.", ["work"], buckets=_SIZES, registry=self.registry
        )
        self.items = Gauge("maxmatch_items", "Items in the index.", registry=self.registry)

    def text(self) -> bytes:
        """All of them, in the format of Prometheus."""
        return generate_latest(self.registry)
