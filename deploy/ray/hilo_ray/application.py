"""The application for `serve run`, `serve deploy` and `serve.run`, made from a dictionary of arguments."""

import shlex
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from ray import serve
from ray.serve import Application

from hilo_ray.autoscaling import POLICY
from hilo_ray.deployment import Hilo

# The replica sets the first one, and reads what the others would encrypt.
_REFUSED_FLAGS = ("--uds", "--tls-certfile", "--tls-keyfile", "--ssl-certfile", "--ssl-keyfile")
# The time beyond `drain_timeout_s` and `stop_timeout_s` after which Ray Serve kills a replica.
_MARGIN_S = 5


class Arguments(BaseModel):
    """The arguments of `app`. Every number that a command line gives as text is converted."""

    model_config = ConfigDict(extra="forbid")

    executable: str | None = Field(None, description="Path of the executable; else HILO_EXECUTABLE, else PATH")
    flags: list[str] = Field([], description="Flags of the executable: a list, or one text as in a shell")
    environment: dict[str, str] = Field({}, description="Variables of the server, such as HF_TOKEN or API_KEY")

    num_cpus: float = Field(1, gt=0, description="CPUs of a replica, and its `--threads`")
    num_gpus: float = Field(0, ge=0, description="GPUs of a replica")
    num_tpus: int = Field(0, ge=0, description="TPU chips of a replica: Ray's resource `TPU`")
    max_replicas_per_node: int | None = Field(None, gt=0, description="Bound on the replicas of one node")

    min_replicas: int = Field(1, ge=0, description="Least number of replicas")
    max_replicas: int = Field(4, gt=0, description="Largest number of replicas")
    scale_on: Literal["requests", "sequences"] = Field(
        "requests", description="Ray Serve's count of running requests, or the server's count of sequences"
    )
    target_ongoing_requests: float = Field(32, gt=0, description="The load to which replicas are scaled")
    # The rows of the server's batch, and some that wait there, so that a free row is taken at once.
    max_ongoing_requests: int = Field(80, gt=0, description="Requests sent to a replica at a time; further ones wait")
    max_queued_requests: int = Field(512, ge=-1, description="Waiting requests; further ones get 503; -1: no bound")
    # Ray reports the load every 10 s. Over a shorter time, the average has no report in it now and then.
    look_back_period_s: float = Field(15, gt=10, description="Seconds over which the load is averaged, more than 10")
    upscale_delay_s: float = Field(10, ge=0, description="Seconds of high load before replicas are added")
    downscale_delay_s: float = Field(300, ge=0, description="Seconds of low load before replicas are removed")

    startup_timeout_s: float = Field(600, gt=0, description="Seconds from start to ready, with downloads")
    drain_timeout_s: float = Field(60, ge=0, description="Seconds that running requests have when a replica stops")
    # A server whose requests have finished frees its hardware within 15 s (docs/limits.md).
    stop_timeout_s: float = Field(20, gt=0, description="Seconds from SIGTERM to SIGKILL after that")
    health_check_period_s: float = Field(2, gt=0, description="Seconds between health checks; three must fail")

    @field_validator("flags", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:  # noqa: ANN401 # anything that a file of arguments may have
        return shlex.split(value) if isinstance(value, str) else value

    @field_validator("flags")
    @classmethod
    def _refuse(cls, flags: list[str]) -> list[str]:
        if refused := [flag for flag in flags if flag.split("=")[0] in _REFUSED_FLAGS]:
            raise ValueError(f"{', '.join(refused)}: the replica listens on a Unix socket of its own, without TLS")
        return flags

    @model_validator(mode="after")
    def _bounds(self) -> "Arguments":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas is {self.min_replicas}, but max_replicas only {self.max_replicas}")
        return self

    def has_flag(self, name: str) -> bool:
        """True if the server is started with this flag."""
        return any(flag.split("=")[0] == name for flag in self.flags)


def app(arguments: Arguments) -> Application:
    """Returns the application. `serve run` makes `arguments` from a dictionary."""
    deployment = serve.deployment(
        name="Hilo",
        ray_actor_options=_resources(arguments),
        autoscaling_config=_autoscaling(arguments),
        max_ongoing_requests=arguments.max_ongoing_requests,
        max_queued_requests=arguments.max_queued_requests,
        health_check_period_s=arguments.health_check_period_s,
        health_check_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=arguments.drain_timeout_s + arguments.stop_timeout_s + _MARGIN_S,
        # A server that cannot start seldom can the next time, and each try may take `startup_timeout_s`.
        max_constructor_retry_count=3,
    )(Hilo)
    if arguments.max_replicas_per_node is not None:
        deployment = deployment.options(max_replicas_per_node=arguments.max_replicas_per_node)
    application: Application = deployment.bind(
        executable=arguments.executable,
        flags=_flags(arguments),
        environment=arguments.environment,
        num_threads=_num_threads(arguments),
        startup_timeout_s=arguments.startup_timeout_s,
        stop_timeout_s=arguments.stop_timeout_s,
    )
    return application


def _resources(arguments: Arguments) -> dict[str, Any]:
    resources = {"TPU": arguments.num_tpus} if arguments.num_tpus else {}
    return {"num_cpus": arguments.num_cpus, "num_gpus": arguments.num_gpus, "resources": resources}


def _autoscaling(arguments: Arguments) -> dict[str, Any]:
    return {
        "min_replicas": arguments.min_replicas,
        "max_replicas": arguments.max_replicas,
        "target_ongoing_requests": arguments.target_ongoing_requests,
        "look_back_period_s": arguments.look_back_period_s,
        "upscale_delay_s": arguments.upscale_delay_s,
        "downscale_delay_s": arguments.downscale_delay_s,
        **({"policy": {"policy_function": POLICY}} if arguments.scale_on == "sequences" else {}),
    }


def _flags(arguments: Arguments) -> list[str]:
    # A replica that has asked Ray for no accelerator must not take one that another replica uses.
    uses_cpu = not arguments.num_gpus and not arguments.num_tpus and not arguments.has_flag("--device")
    # Ray Serve has already waited for running requests. What still runs is told so, instead of being cut off.
    is_given = any(arguments.has_flag(name) for name in ("--shutdown-timeout", "--graceful-termination-timeout", "-g"))
    given_up = [] if is_given else ["--shutdown-timeout", "0"]
    return arguments.flags + given_up + (["--device", "cpu"] if uses_cpu else [])


def _num_threads(arguments: Arguments) -> int | None:
    return None if arguments.has_flag("--threads") else max(1, int(arguments.num_cpus))
