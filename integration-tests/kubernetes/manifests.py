"""The kustomizations of deploy/kubernetes, and the pods in them."""

import dataclasses
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ROOT = REPOSITORY / "deploy/kubernetes"
# The folders that can be applied. Components are part of others.
FOLDERS = sorted(file.parent.name for file in ROOT.glob("*/kustomization.yaml"))
# The prefix of labels of LeaderWorkerSet.
LWS = "leaderworkerset.sigs.k8s.io"


@dataclasses.dataclass
class Pod:
    """A pod of a workload: its specification, with one container, and its labels."""

    name: str
    spec: dict
    labels: dict
    documents: list
    # The LeaderWorkerSet of which this is a pod.
    group: dict | None = None

    @property
    def container(self):
        [container] = self.spec["containers"]
        return container

    def port(self, port):
        """Returns the number of a port of the container, for its name or its number."""
        numbers = {each.get("name"): each["containerPort"] for each in self.container["ports"]}
        assert port in numbers or port in numbers.values(), f"{self.name} has no port {port}"
        return numbers.get(port, port)

    def variables(self, secrets):
        """Returns the variables of the container. `secrets` has the values of Secrets by their keys."""
        variables = {}
        for source in self.container.get("envFrom", []):
            variables |= self.document("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in self.container.get("env", []):
            if "value" in variable:
                variables[variable["name"]] = variable["value"]
            else:
                variables[variable["name"]] = secrets[variable["valueFrom"]["secretKeyRef"]["key"]]
        return variables

    @property
    def group_size(self):
        return self.group["spec"]["leaderWorkerTemplate"]["size"] if self.group else 1

    def host(self, index):
        """Returns the host name of a pod of the first group."""
        name = self.group["metadata"]["name"]
        return f"{name}-0{f'-{index}' if index else ''}.{name}"

    def group_variables(self, index):
        """Returns the variables that LeaderWorkerSet sets in a pod of a group, in the namespace `default`."""
        variables = {
            "LWS_LEADER_ADDRESS": f"{self.host(0)}.default",
            "LWS_GROUP_SIZE": str(self.group_size),
            "LWS_WORKER_INDEX": str(index),
        }
        if "google.com/tpu" in self.container["resources"]["limits"]:
            hosts = [self.host(each) for each in range(self.group_size)]
            variables |= {
                "TPU_WORKER_HOSTNAMES": ",".join(hosts),
                "TPU_WORKER_ID": str(index),
                "TPU_NAME": f"{self.group['metadata']['name']}-0",
                "TPU_PROCESS_ADDRESSES": ",".join(f"{host}:8476" for host in hosts),
                "TPU_PROCESS_PORT": "8476",
            }
        return variables

    def document(self, kind, name):
        [document] = [each for each in self.documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return document


def pods(name, documents):
    """Returns the pods of the kustomization `name`."""
    found = []
    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] == "Deployment":
            template = spec["template"]
            found.append(Pod(name, template["spec"], template["metadata"]["labels"], documents))
        elif document["kind"] == "LeaderWorkerSet":
            # The first pod of a group, which is like the others.
            group = spec["leaderWorkerTemplate"]
            template = group["workerTemplate"]
            assert "leaderTemplate" not in group
            claims = [{"name": claim["metadata"]["name"]} for claim in group["volumeClaimTemplates"]]
            own = {"volumes": template["spec"]["volumes"] + claims}
            labels = dict(template["metadata"]["labels"])
            labels |= {f"{LWS}/name": document["metadata"]["name"], f"{LWS}/worker-index": "0"}
            found.append(Pod(name, template["spec"] | own, labels, documents, document))
        elif document["kind"] == "InferenceService":
            # KServe's pod has the containers and volumes of the runtime, and the rest from the service.
            predictor = dict(spec["predictor"])
            model = predictor.pop("model")
            [runtime] = [each for each in documents if each["kind"] == "ServingRuntime"]
            assert runtime["metadata"]["name"] == model["runtime"]
            formats = [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
            assert model["modelFormat"]["name"] in formats, formats
            own = {key: runtime["spec"][key] for key in ("containers", "volumes")}
            found.append(Pod(name, predictor | own, runtime["spec"].get("labels", {}), documents))
    return found
