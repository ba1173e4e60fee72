"""Runs a container of a pod without an engine: the executable with the container's arguments and variables.

As root, the executable is the first process of its namespaces, in a root file system that is read-only and has the
executable, its libraries, and the pod's volumes. It runs as the container's user, without capabilities, and cannot get
new ones. The profile of system calls and the limits of resources are not imitated.

Others run it as themselves in an empty read-only folder; paths of volumes are replaced in arguments and variables.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import manifests

PROGRAM = "usr/local/bin/text-generation-launcher"
# Mounts the volumes below $root, makes the rest of it read-only, and becomes the program as user $1 and group $2.
AS_ROOT = """
set -e
mount --bind "$root" "$root"
mount -t proc none "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,size=64m none "$root/dev/shm"
mount --rbind /sys "$root/sys"
while read -r volume path option; do
    mount --bind "$volume" "$root$path"
    [ "$option" = rw ] || mount -o "remount,bind,$option" "$root$path"
done < "$mounts"
mount -o remount,bind,ro "$root"
user=$1
shift
exec setpriv --no-new-privs chroot --userspec="$user" --groups="${user#*:}" "$root" /bin/env -i "$@"
"""
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]


def can_isolate():
    probe = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(probe, capture_output=True).returncode == 0


def image_variables(target):
    """Returns the variables of a target of the Dockerfile."""
    text = re.sub(r"\\\n", " ", (manifests.REPOSITORY / "Dockerfile").read_text())
    stages = {}
    for line in text.splitlines():
        if stage := re.match(r"FROM (\S+)(?: AS (\S+))?", line):
            current = dict(stages.get(stage[1], {}))
            stages[stage[2]] = current
        elif line.startswith("ENV "):
            current.update(word.split("=", 1) for word in line.removeprefix("ENV ").split())
    return stages[target]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Container:
    """A container that runs until the `with` block ends. With `index`, it is the one of that pod of a group, whose pods
    reach each other through `network`, at the ports of the manifest. Otherwise it has free ports of this machine."""

    def __init__(self, executable, pod, secrets, model, is_isolated, index=None, network=None):
        self.pod = pod
        self.index = index
        self.network = network
        self.executable = executable
        self.is_isolated = is_isolated
        self.folder = Path(tempfile.mkdtemp(prefix="hilo-pod-"))
        self.folder.chmod(0o755)
        ports = [pod.port(port["containerPort"]) for port in pod.container["ports"]]
        self.ports = {port: port if network else free_port() for port in ports}
        self.listening = self.ports[pod.port("http")]
        self.secrets = secrets
        self.volumes = self.make_volumes(model)
        self.variables = self.make_variables()
        self.arguments = [self.replaced(argument) for argument in pod.container.get("args", [])]
        self.url = f"http://{network.addresses[index] if network else '127.0.0.1'}:{self.listening}"

    def make_volumes(self, model):
        """Makes a folder for each volume, and returns (folder, path in the container, mount option) for each."""
        volumes = []
        group = self.pod.spec["securityContext"].get("fsGroup", -1)
        secrets = {volume["name"]: volume["secret"] for volume in self.pod.spec["volumes"] if "secret" in volume}
        for mount in self.pod.container["volumeMounts"]:
            folder = self.folder / "volumes" / mount["name"]
            folder.mkdir(parents=True)
            if self.is_isolated:
                os.chown(folder, 0, group)
                folder.chmod(0o2775)
            if secret := secrets.get(mount["name"]):
                self.write_secret(folder, secret, group)
            volumes.append((folder, mount["mountPath"], "ro" if mount.get("readOnly") else "rw"))
        if any("/mnt/models" in argument for argument in self.pod.container.get("args", [])):
            # KServe mounts the model that it has downloaded.
            volumes.append((model, "/mnt/models", "ro"))
        return volumes

    def write_secret(self, folder, secret, group):
        for item in secret["items"]:
            file = folder / item["path"]
            file.write_text(self.secrets[item["key"]])
            if self.is_isolated:
                os.chown(file, 0, group)
            file.chmod(secret["defaultMode"])

    def make_variables(self):
        target = self.pod.container["image"].rpartition(":")[2]
        variables = image_variables(target) | self.pod.variables(self.secrets)
        for name in "PORT", "SLICE_PORT":
            port = int(variables.get(name, 0))
            if port in self.ports:
                variables[name] = str(self.ports[port])
        if not variables.get("MODEL_ID", "demo").startswith("/"):
            variables["MODEL_ID"] = "demo"
        # A host with the device is not here: run_plan checks this one's.
        variables.pop("DEVICE", None)
        if self.index is not None:
            variables |= self.pod.group_variables(self.index)
        if not self.is_isolated:
            variables = {name: self.replaced(value) for name, value in variables.items()}
            variables["TMPDIR"] = self.replaced("/tmp")
            variables["PATH"] = os.environ["PATH"]
            variables.pop("SSL_CERT_FILE", None)
        return variables

    def replaced(self, text):
        """Returns an argument or the value of a variable with the values of this machine."""
        text = text.replace("{{.Name}}", "hilo")
        if flag := re.fullmatch(r"(--port=)(\d+)", text):
            return f"{flag[1]}{self.ports[int(flag[2])]}"
        if not self.is_isolated:
            for folder, path, _ in self.volumes:
                flag, _, value = text.rpartition("=")
                if value == path or value.startswith(f"{path}/"):
                    return f"{flag}{'=' if flag else ''}{folder}{value.removeprefix(path)}"
        return text

    def __enter__(self):
        root = self.folder / "root"
        root.mkdir()
        log = (self.folder / "log").open("w")
        if self.is_isolated:
            self.fill(root)
            security = self.pod.spec["securityContext"] | self.pod.container["securityContext"]
            user = f"{security['runAsUser']}:{security['runAsGroup']}"
            variables = [f"{name}={value}" for name, value in self.variables.items()]
            entering = self.network.entering(self.index) if self.network else []
            program = [f"/{PROGRAM}", *self.arguments]
            command = [*entering, *UNSHARE, "bash", "-c", AS_ROOT, "-", user, *variables, *program]
            surroundings = os.environ | {"root": str(root), "mounts": str(self.folder / "mounts")}
            self.process = subprocess.Popen(command, env=surroundings, stdout=log, stderr=log)
        else:
            root.chmod(0o555)
            command = [self.executable, *self.arguments]
            self.process = subprocess.Popen(command, env=self.variables, cwd=root, stdout=log, stderr=log)
        log.close()
        return self

    def fill(self, root):
        """Puts into `root` what an image has, and the places for the volumes."""
        for program, place in (self.executable, PROGRAM), (shutil.which("env"), "bin/env"):
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(program, root / place)
            libraries = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
            for library in re.findall(r"/\S+", libraries):
                (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, root / library[1:])
        for path in ("proc", "dev", "sys", *(path[1:] for _, path, _ in self.volumes if path != "/dev/shm")):
            (root / path).mkdir(parents=True, exist_ok=True)
        if self.network:
            hosts = enumerate(self.network.addresses)
            lines = [f"{address} {self.pod.host(index)}.default\n" for index, address in hosts]
            (root / "etc/hosts").write_text("".join(lines))
        lines = [f"{folder} {path} {option}\n" for folder, path, option in self.volumes]
        (self.folder / "mounts").write_text("".join(lines))

    def __exit__(self, *_):
        if self.process.poll() is None:
            # With this one, the namespace of processes and all processes in it end.
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    def log(self):
        return (self.folder / "log").read_text()

    def terminate(self):
        """Sends SIGTERM to the first process of the container."""
        process = self.process.pid
        if self.is_isolated:
            [process] = map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        os.kill(process, signal.SIGTERM)

    def status(self, path, headers=None, timeout=None):
        """Returns the status of a GET request, or None if nobody listens."""
        try:
            request = urllib.request.Request(self.url + path, headers=headers or {})
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None
