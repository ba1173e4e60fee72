"""Checks the manifests of deploy/kubernetes without a cluster: every document against the schema of its kind, the names
by which they refer to each other, and what every pod must have. Checks the Grafana of compose.yaml too."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

import kustomize
import manifests

SCHEMAS = Path(__file__).parent / "schemas"
# The oldest version with `sleep` in preStop by default, and the newest that the package knows.
VERSIONS = "1.30", "1.37"
# Time in which the launcher ends its processes after --shutdown-timeout, as docs/limits.md adds it up.
MARGIN_SECONDS = 15
# What a loaded model and its download may take at least.
START_SECONDS = 1800


def check_schema(document):
    schema = SCHEMAS / f"{document['kind']}.json"
    if schema.exists():
        jsonschema.validate(document, json.loads(schema.read_text()), jsonschema.Draft202012Validator)
        if document["kind"] == "LeaderWorkerSet":
            template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
            check_schema({"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": {"name": "pod"}})
    else:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)


def check_same_as_kubectl(name, documents):
    run = subprocess.run(["kubectl", "kustomize", manifests.ROOT / name], check=True, capture_output=True, text=True)
    theirs = list(yaml.safe_load_all(run.stdout))
    assert sorted(theirs, key=kustomize.identity) == sorted(documents, key=kustomize.identity), name


def check_pod(pod):
    spec, container = pod.spec, pod.container
    security = spec["securityContext"] | container["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not spec["automountServiceAccountToken"] and not spec["enableServiceLinks"]

    for quantity in "cpu", "memory":
        assert quantity in container["resources"]["requests"] and quantity in container["resources"]["limits"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert volumes == {mount["name"] for mount in container["volumeMounts"]}
    assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])
    folders = [volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume]
    on_disk = sum(mib(folder["sizeLimit"]) for folder in folders if folder.get("medium") != "Memory")
    requested = mib(container["resources"]["requests"]["ephemeral-storage"])
    assert requested >= on_disk, f"{pod.name}: its volumes take {on_disk} MiB of the node's disk, {requested} requested"

    for name in "startupProbe", "readinessProbe", "livenessProbe":
        pod.port(container[name]["httpGet"]["port"])
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= START_SECONDS

    needed = container["lifecycle"]["preStop"]["sleep"]["seconds"] + shutdown_timeout(pod) + MARGIN_SECONDS
    assert spec["terminationGracePeriodSeconds"] >= needed, f"{pod.name} needs {needed} s"


def mib(quantity):
    """Returns the MiB of a quantity such as 64Mi or 50Gi."""
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def check_grafana():
    """Checks that compose.yaml starts a Grafana into which nobody can log in with a password that everybody knows."""
    compose = yaml.safe_load((manifests.REPOSITORY / "compose.yaml").read_text())
    settings = compose["services"]["grafana"]["environment"]
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true", settings
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false" and settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true", settings


def check_spread(pod):
    """Checks that the pods of a Deployment are spread over nodes and over zones."""
    keys = {constraint["topologyKey"] for constraint in pod.spec["topologySpreadConstraints"]}
    assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}, keys


def check_outage_of_metrics(document):
    """Checks that a missing metric does not count as no load."""
    spec = document["spec"]
    assert spec["fallback"]["replicas"] == spec["maxReplicaCount"]
    for trigger in spec["triggers"]:
        assert trigger["metadata"]["ignoreNullValues"] == "false", trigger["name"]


def check_slice(name, document, documents, pod):
    """Checks a set of groups of pods, each of which serves one model."""
    message = f"{name}: {document['metadata']['name']}"
    group = document["spec"]["leaderWorkerTemplate"]
    assert group["size"] > 1 and group["restartPolicy"] == "RecreateGroupOnPodRestart", message
    assert document["spec"]["startupPolicy"] == "LeaderCreated", f"{message}: the first pod waits for the others"
    # The pods find each other through a Service that LeaderWorkerSet makes, if there is none with that name.
    services = [each["metadata"]["name"] for each in documents if each["kind"] == "Service"]
    assert services and document["metadata"]["name"] not in services, message
    for each in documents:
        if each["kind"] in ("Service", "InferencePool"):
            selector = each["spec"]["selector"]
            index = selector.get("matchLabels", selector).get(f"{manifests.LWS}/worker-index")
            assert index == "0", f"{message}: {each['kind']} sends requests to all pods of a group"

    [budget] = [each["spec"] for each in documents if each["kind"] == "PodDisruptionBudget"]
    assert budget["maxUnavailable"] == 1, message
    assert budget["selector"]["matchLabels"].get(f"{manifests.LWS}/worker-index") == "0", message

    [policy] = [each for each in documents if each["kind"] == "NetworkPolicy"]
    everybody, peers = policy["spec"]["ingress"]
    same_set = {f"{manifests.LWS}/name": document["metadata"]["name"]}
    assert policy["spec"]["podSelector"] == {"matchLabels": same_set} and policy["spec"]["policyTypes"] == ["Ingress"]
    assert everybody == {"ports": [{"port": "http"}]}, everybody
    assert peers == {"from": [{"podSelector": {"matchLabels": same_set}}]}, peers

    variables = pod.variables(dict.fromkeys(["hf-token", "api-key"], ""))
    assert int(variables["SLICE_PORT"]) == pod.port("slice"), message
    is_tpu = "google.com/tpu" in pod.container["resources"]["limits"]
    assert is_tpu or variables["SLICE_TLS"] == "true", f"{message}: activations would cross the network in clear"
    folders = [mount["mountPath"] for mount in pod.container["volumeMounts"] if mount["name"] == "slice"]
    assert folders == [variables["SLICE_SECRET_FILE"].rpartition("/")[0]], message
    start, alive = pod.container["startupProbe"], pod.container["livenessProbe"]
    needed = START_SECONDS + int(variables["SLICE_TIMEOUT"])
    assert start["periodSeconds"] * start["failureThreshold"] >= needed, message
    patience = alive["periodSeconds"] * alive["failureThreshold"]
    assert patience >= shutdown_timeout(pod) + MARGIN_SECONDS, f"{message}: a pod ends while another one finishes"

    if topology := pod.spec.get("nodeSelector", {}).get("cloud.google.com/gke-tpu-topology"):
        num_chips = math.prod(map(int, topology.split("x")))
        assert num_chips == group["size"] * pod.container["resources"]["limits"]["google.com/tpu"], message
        pool = document["metadata"]["annotations"][f"{manifests.LWS}/exclusive-topology"]
        assert pool == "cloud.google.com/gke-nodepool", message
    else:
        [apart] = pod.spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert is_selected(apart["labelSelector"]["matchLabels"], pod), message


def shutdown_timeout(pod):
    prefix = "--shutdown-timeout="
    flags = [argument.removeprefix(prefix) for argument in pod.container.get("args", []) if argument.startswith(prefix)]
    return int(flags[0] if flags else pod.variables(dict.fromkeys(["hf-token", "api-key"], ""))["SHUTDOWN_TIMEOUT"])


def is_selected(selector, pod):
    return selector.items() <= pod.labels.items()


def check_references(name, documents, pods):
    """Checks the references in `documents` to `pods` and to each other."""
    names = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for document in documents:
        kind, spec = document["kind"], document.get("spec", {})
        message = f"{name}: {kind}"
        if kind in ("HorizontalPodAutoscaler", "ScaledObject"):
            target = spec["scaleTargetRef"]
            assert (target["kind"], target["name"]) in names, message
        if kind == "Service":
            for pod in pods:
                assert is_selected(spec["selector"], pod), message
                pod.port(spec["ports"][0]["targetPort"])
        if kind in ("PodDisruptionBudget", "PodMonitor", "InferencePool", "Deployment"):
            assert all(is_selected(spec["selector"]["matchLabels"], pod) for pod in pods), message
        if kind == "PodMonitor":
            for pod in pods:
                assert pod.port(spec["podMetricsEndpoints"][0]["port"])
                assert pod.labels[spec["jobLabel"]] == "hilo", "the queries of the ScaledObject name this job"
        if kind == "InferencePool":
            assert all(pod.port(port["number"]) for pod in pods for port in spec["targetPorts"]), message
        if kind == "HTTPRoute":
            for backend in spec["rules"][0]["backendRefs"]:
                assert (backend["kind"], backend["name"]) in names, message
    scalers = [kind for kind, _ in names if kind in ("HorizontalPodAutoscaler", "ScaledObject")]
    assert len(scalers) <= 1, f"{name}: {scalers} work against each other"
    for pod in manifests.pods(name, documents):
        for volume in pod.spec["volumes"]:
            claim = volume.get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in names, f"{name}: {claim}"


def main():
    built = {name: kustomize.build(manifests.ROOT / name) for name in manifests.FOLDERS}
    slices = {"cpu-slice", "tpu-slice", "example-slice"}
    assert {"cpu", "tpu", "gateway", "kserve", "monitoring", "example"} | slices <= set(built)
    has_kubectl = shutil.which("kubectl") is not None
    # The folders without pods are for the pods of these.
    served = [pod for name in ("cpu", "tpu") for pod in manifests.pods(name, built[name])]
    kinds = set()
    for name, documents in built.items():
        for document in documents:
            kinds.add(document["kind"])
            check_schema(document)
        pods = manifests.pods(name, documents)
        for pod in pods:
            check_pod(pod)
            if name in ("cpu", "example"):
                check_spread(pod)
        for document in documents:
            if document["kind"] == "ScaledObject":
                check_outage_of_metrics(document)
            if document["kind"] == "LeaderWorkerSet":
                [pod] = pods
                check_slice(name, document, documents, pod)
        check_references(name, documents, pods or served)
        if has_kubectl:
            check_same_as_kubectl(name, documents)
    check_grafana()
    unused = {schema.stem for schema in SCHEMAS.glob("*.json")} - kinds
    assert not unused, unused

    [example] = manifests.pods("example", built["example"])
    assert example.container["image"] == "registry.example.com/hilo:cpu"
    variables = example.variables({"hf-token": "", "api-key": ""})
    assert variables["MODEL_ID"] != "demo" and variables["SHUTDOWN_TIMEOUT"] == "120", variables
    print(f"  {sum(map(len, built.values()))} documents of {len(kinds)} kinds")
    if not has_kubectl:
        print("  skipped: there is no kubectl to compare the resolved kustomizations with")


if __name__ == "__main__":
    main()
