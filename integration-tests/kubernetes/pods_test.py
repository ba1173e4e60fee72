"""Starts the container of every pod of deploy/kubernetes as a node would, and stops it during a generation.

    pods_test.py EXECUTABLE
"""

import concurrent.futures
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import container
import kustomize
import manifests
import network

SECRETS = {"hf-token": "hf_test", "api-key": "test-key", "secret": "shown to the hosts of a slice"}
# The demo model as a directory.
MODEL = manifests.REPOSITORY / "demo"
START_SECONDS = 60
# The prefix of labels of GKE's nodes.
GKE = "cloud.google.com"
# Generations that run when SIGTERM arrives.
NUM_STREAMS = 8
# Time between two nodes that send SIGTERM to pods of a group.
SIGNAL_SECONDS = 0.2


def gke_variables(pod):
    """Returns what GKE sets in a pod with all chips of a host of four."""
    bounds = [math.ceil(int(size) / 2) for size in pod.spec["nodeSelector"][f"{GKE}/gke-tpu-topology"].split("x")]
    assert math.prod(bounds) == pod.group_size
    return {
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_TOPOLOGY": pod.spec["nodeSelector"][f"{GKE}/gke-tpu-topology"],
        "TPU_ACCELERATOR_TYPE": f"v6e-{4 * pod.group_size}",
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_HOST_BOUNDS": ",".join(map(str, [*bounds, 1])),
    }


class Stream(threading.Thread):
    """A client that reads a generation of `num_tokens` tokens as it comes."""

    def __init__(self, url, headers, num_tokens):
        super().__init__()
        parameters = {"max_new_tokens": num_tokens, "ignore_eos_token": True, "details": True}
        body = json.dumps({"inputs": "Once", "parameters": parameters}).encode()
        headers = headers | {"Content-Type": "application/json"}
        self.request = urllib.request.Request(f"{url}/generate_stream", body, headers)
        self.num_tokens = num_tokens
        self.times = []
        self.last = None
        self.has_begun = threading.Event()
        self.start()

    def run(self):
        try:
            with urllib.request.urlopen(self.request, timeout=120) as response:
                for line in response:
                    if line.startswith(b"data:"):
                        self.times.append(time.monotonic())
                        self.last = json.loads(line.removeprefix(b"data:"))
                        self.has_begun.set()
        except Exception as error:
            self.last = repr(error)
        finally:
            self.has_begun.set()

    def check(self):
        self.join()
        details = self.last.get("details") if isinstance(self.last, dict) else None
        assert details, self.last
        assert (details["finish_reason"], details["generated_tokens"]) == ("length", self.num_tokens), details
        assert len(self.times) == self.num_tokens


def check_probes(servers):
    """Waits for the startup probe of each server, then tries the others."""
    for server in servers:
        check_start(server)
    for server in servers:
        for name in "readiness", "liveness":
            probe = server.pod.container[f"{name}Probe"]
            assert server.status(probe["httpGet"]["path"], timeout=probe["timeoutSeconds"]) == 200, name


def check_start(server):
    probes = {name: server.pod.container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    for probe in probes.values():
        port = server.pod.port(probe["httpGet"]["port"])
        assert server.ports[port] == server.listening, f"nobody listens on {port}"
    end = time.monotonic() + START_SECONDS
    get = probes["startup"]["httpGet"]
    while server.status(get["path"], timeout=probes["startup"]["timeoutSeconds"]) != 200:
        assert server.process.poll() is None, f"it ended with {server.process.returncode}"
        assert time.monotonic() < end, "it does not get ready"
        time.sleep(0.05)


def check_requests(server, headers, documents):
    body = json.dumps({"model": "any", "prompt": "Once upon a time", "max_tokens": 8}).encode()
    json_headers = headers | {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/completions", body, json_headers)
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["usage"]["completion_tokens"] > 0
    assert server.status("/v1/models") == 401, "the server has a key"

    request = urllib.request.Request(f"{server.url}/metrics", headers=headers)
    with urllib.request.urlopen(request) as response:
        page = response.read().decode()
    for document in documents:
        if document["kind"] == "ScaledObject":
            for trigger in document["spec"]["triggers"]:
                [metric] = re.findall(r"vllm:\w+", trigger["metadata"]["query"])
                assert re.search(rf"^{metric}[ {{]", page, re.MULTILINE), f"{metric} is not on {page}"


def check_stop(servers, headers):
    """Does what nodes do with the pods of a server that are deleted, while clients read generations. The first of
    `servers` takes the requests, and gets its signal last."""
    first, pod = servers[0], servers[0].pod
    with urllib.request.urlopen(urllib.request.Request(f"{first.url}/info", headers=headers)) as response:
        num_tokens = json.load(response)["max_total_tokens"] - 100
    begin = time.monotonic()
    early = Stream(first.url, headers, num_tokens)
    time.sleep(pod.container["lifecycle"]["preStop"]["sleep"]["seconds"])
    for server in servers:
        assert server.status(pod.container["readinessProbe"]["httpGet"]["path"]) == 200, "it stopped during preStop"
    streams = [Stream(first.url, headers, num_tokens) for _ in range(NUM_STREAMS)]
    for stream in streams:
        assert stream.has_begun.wait(30)
    assert any(stream.is_alive() for stream in streams), "the generations ended too early"
    terminated = time.monotonic()
    for server in reversed(servers):
        server.terminate()
        time.sleep(SIGNAL_SECONDS)
    for stream in [early, *streams]:
        stream.check()
    assert max(stream.times[-1] for stream in streams) > terminated, "no generation ran when SIGTERM came"
    for server in servers:
        left = begin + pod.spec["terminationGracePeriodSeconds"] - time.monotonic()
        status = server.process.wait(timeout=left)
        assert status == 0, f"the exit status is {status}"


def run_pod(executable, pod, is_isolated, is_connected):
    """Runs a pod, or all pods of a group if they can be connected, and returns the number of them."""
    headers = {"Authorization": f"Bearer {SECRETS['api-key']}"}
    # The demo model cannot be split over the hosts of a TPU's slice.
    is_group = is_connected and pod.group_size > 1 and "google.com/tpu" not in pod.container["resources"]["limits"]
    with contextlib.ExitStack() as stack:
        of_group = stack.enter_context(network.Network(pod.group_size)) if is_group else None
        servers = []
        for index in range(pod.group_size) if is_group else [None]:
            server = container.Container(executable, pod, SECRETS, MODEL, is_isolated, index, of_group)
            servers.append(stack.enter_context(server))
        try:
            check_probes(servers)
            if is_isolated:
                for server in servers:
                    check_isolation(server)
            check_requests(servers[0], headers, pod.documents)
            for server in servers[1:]:
                assert server.status("/metrics") == 200
                assert server.status("/v1/models", headers) == 421, "only the first pod takes requests"
            check_stop(servers, headers)
        except BaseException as error:
            for server in servers:
                error.add_note(f"pod {pod.name} {server.index}, log:\n{server.log()}")
            raise
    return len(servers)


def check_isolation(server):
    """Checks that the server has the rights of the container and no others."""
    process = server.process.pid
    [first] = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    status = Path(f"/proc/{first}/status").read_text()
    [user] = re.findall(r"^Uid:\t(\d+)\t", status, re.MULTILINE)
    assert int(user) == server.pod.spec["securityContext"]["runAsUser"], user
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE) and "NoNewPrivs:\t1\n" in status, status
    mounts = Path(f"/proc/{first}/mounts").read_text()
    root = next(line for line in mounts.splitlines() if line.split()[1] == "/")
    assert "ro" in root.split()[3].split(","), root


def run_plan(executable, pod):
    """Checks with a folder that looks like a host with the chips of the pod that one process drives all of them; in a
    group, on each of its hosts."""
    num_chips = pod.container["resources"]["limits"]["google.com/tpu"]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for chip in range(num_chips):
            device = root / f"sys/bus/pci/devices/0000:00:0{chip + 4}.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x1ae0\n")
            (device / "device").write_text("0x006f\n")
            (device / "iommu_group").symlink_to(f"../../iommu_groups/{chip}")
            (root / "dev/vfio").mkdir(parents=True, exist_ok=True)
            (root / f"dev/vfio/{chip}").touch()
        variables = container.image_variables("tpu") | pod.variables(SECRETS) | gke_variables(pod) | {"HOME": folder}
        assert variables["DEVICE"] == "tpu"
        if pod.group:
            file = root / "slice-secret"
            file.write_text(SECRETS["secret"])
            variables["SLICE_SECRET_FILE"] = str(file)
        arguments = [executable, "plan", "--sysfs-root", folder, *pod.container.get("args", [])]
        texts = []
        for index in range(pod.group_size):
            own = variables | (pod.group_variables(index) if pod.group else {})
            texts.append(subprocess.run(arguments, env=own, check=True, capture_output=True, text=True).stdout)
    for index, text in enumerate(texts):
        shards = f"--num-shards {pod.group_size}"
        assert f"--shard {index} {shards} --devices-per-shard {num_chips}\n" in text, text
        has_router = re.search(rf"router --model-id \S.* {shards} --port {variables['PORT']}\n", text) is not None
        assert has_router == (index == 0), text
        assert text.count("\nchip ") == num_chips and "not used" not in text and "error: " not in text, text


def main():
    executable = os.path.abspath(sys.argv[1])
    # No proxy reaches the pods.
    os.environ["no_proxy"] = "*"
    is_isolated = container.can_isolate()
    if not is_isolated:
        print("  skipped: without root the containers run as this user, and their root file system is this machine's")
    # The names of other pods are known only in a container.
    is_connected = is_isolated and network.can_connect()
    if not is_connected:
        print("  skipped: without network namespaces each group runs as one pod")
        assert os.environ.get("HILO_REQUIRE_NAMESPACES") != "1", "no network of pods can be made"
    built = [(name, kustomize.build(manifests.ROOT / name)) for name in manifests.FOLDERS]
    pods = [pod for name, documents in built for pod in manifests.pods(name, documents)]
    assert {pod.name for pod in pods} >= {"cpu", "tpu", "cpu-slice", "tpu-slice", "kserve", "example"}
    for pod in pods:
        if "google.com/tpu" in pod.container["resources"]["limits"]:
            run_plan(executable, pod)
    with concurrent.futures.ThreadPoolExecutor(len(pods)) as pool:
        runs = {pod.name: pool.submit(run_pod, executable, pod, is_isolated, is_connected) for pod in pods}
        for name, run in runs.items():
            pods_of_it = f"{num} pods of a group" if (num := run.result()) > 1 else "a pod"
            print(f"  {name}: {pods_of_it} started, served, and stopped with status 0 after the generations")


if __name__ == "__main__":
    main()
