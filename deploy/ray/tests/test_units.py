"""Parts that need neither Ray nor a server."""

import pydantic
import pytest

from hilo_ray import Arguments
from hilo_ray.application import _flags, _num_threads, _resources
from hilo_ray.autoscaling import queue_stats
from hilo_ray.exchange import _NOT_RETURNED, _passed_on, _target


def test_arguments_of_a_command_line_are_texts() -> None:
    arguments = Arguments.model_validate({"flags": "--model-id 'a b' --quantize int8", "num_cpus": "2.5"})
    assert arguments.flags == ["--model-id", "a b", "--quantize", "int8"]
    assert _num_threads(arguments) == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"flag": "--model-id demo"}, "flag"),
        ({"flags": "--uds=/tmp/a"}, "--uds"),
        ({"flags": "--tls-certfile a"}, "--tls-certfile"),
        ({"min_replicas": 5}, "max_replicas only 4"),
        ({"scale_on": "tokens"}, "scale_on"),
        ({"look_back_period_s": 5}, r"look_back_period_s\n.*greater than 10"),
        ({"look_back_period_s": "10"}, r"look_back_period_s\n.*greater than 10"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=named):
        Arguments.model_validate(arguments)


def test_a_replica_takes_only_the_devices_that_it_has_asked_for() -> None:
    assert _flags(Arguments())[-2:] == ["--device", "cpu"]
    assert "cpu" not in _flags(Arguments(flags=["--device=xla-cpu"]))
    tpu = Arguments(num_tpus=4)
    assert "--device" not in _flags(tpu)
    assert _resources(tpu)["resources"] == {"TPU": 4}


def test_a_replica_that_is_stopped_waits_no_longer_for_requests() -> None:
    assert _flags(Arguments(num_tpus=4)) == ["--shutdown-timeout", "0"]
    for flags in (["--shutdown-timeout=3"], ["-g", "3"]):
        assert _flags(Arguments(num_tpus=4, flags=flags)) == flags


def test_flags_of_the_user_win() -> None:
    assert _num_threads(Arguments(flags=["--threads", "3"])) is None


def test_queue_stats_are_read_from_metrics() -> None:
    running = 'vllm:num_requests_running{model_name="a b",engine="0"} 7'
    metrics = f'# TYPE x gauge\n{running}\nvllm:num_requests_waiting 2\nother 1\nx{{a="b c"}} 3\n'
    assert queue_stats(metrics) == {"hilo_running": 7.0, "hilo_waiting": 2.0}


@pytest.mark.parametrize(
    ("root", "raw", "query", "target"),
    [
        ("", b"/v1/models/a%2Fb", b"", "/v1/models/a%2Fb"),
        ("/hilo", b"/hilo/v1/models", b"x=%20", "/v1/models?x=%20"),
        ("/hilo", b"/hilo", b"", "/"),
        ("/hilo", b"/info", b"", "/info"),
    ],
)
def test_targets_lose_only_the_prefix(root: str, raw: bytes, query: bytes, target: str) -> None:
    assert _target({"root_path": root, "raw_path": raw, "path": "", "query_string": query}) == target


def test_hop_by_hop_headers_are_not_passed_on() -> None:
    headers = [(b"Connection", b"close, X-Private"), (b"x-private", b"1"), (b"TE", b"trailers"), (b"x-kept", b"2")]
    assert _passed_on(headers, _NOT_RETURNED) == [(b"x-kept", b"2")]
