"""The numbers of the server's queue, and the policy of the autoscaler that uses them."""

from typing import Any

from ray.serve.config import AutoscalingContext

# The names of the server's gauges, and of the numbers that a replica reports.
_GAUGES = {"vllm:num_requests_running": "hilo_running", "vllm:num_requests_waiting": "hilo_waiting"}
POLICY = "hilo_ray.autoscaling:sequences_policy"


def queue_stats(metrics: str) -> dict[str, float]:
    """Returns the numbers of running and waiting sequences in the text of the server's `/metrics`."""
    # A sample is a name, labels in braces, which may contain spaces, and a value.
    samples = (line.rpartition(" ") for line in metrics.splitlines())
    by_name = ((sample.partition("{")[0], value) for sample, _, value in samples)
    return {_GAUGES[name]: float(value) for name, value in by_name if name in _GAUGES}


def sequences_policy(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Returns the wanted number of replicas: all sequences, divided by `target_ongoing_requests`.

    A request with several prompts or choices counts as several sequences. Requests that wait in Ray Serve count too.
    Ray Serve applies delays and bounds.
    """
    by_name = context.aggregated_metrics or {}
    sequences = sum(sum(by_name.get(name, {}).values()) for name in _GAUGES.values())
    assert context.config is not None
    return (sequences + (context.total_queued_requests or 0)) / context.config.target_ongoing_requests, {}
