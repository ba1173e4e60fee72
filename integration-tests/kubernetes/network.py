"""Networks of pods without an engine. They need the rights of root, and `ip`."""

import itertools
import os
import subprocess

# Networks that this process has made.
NUMBERS = itertools.count()


class Network:
    """The network of the pods of a group while the `with` block runs. Each pod has a namespace with an address of its
    own, because all pods of a group listen at the same ports. This machine reaches them through a bridge, which is in a
    namespace too, so that no rule of this machine's firewall applies between pods."""

    def __init__(self, num_pods):
        number = next(NUMBERS)
        self.bridge = f"hilo-pods-{os.getpid()}-{number}"
        self.namespaces = [f"{self.bridge}-{index}" for index in range(num_pods)]
        # A part of the block for benchmark tests (RFC 2544), which no network routes.
        self.prefix = f"198.19.{(os.getpid() + number) % 256}"
        self.addresses = [f"{self.prefix}.{index + 2}" for index in range(num_pods)]
        # A device has a name of at most 15 characters.
        self.device = f"hilo{os.getpid() % 100_000}p{number}"

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_):
        self.remove()

    def make(self):
        for namespace in self.bridge, *self.namespaces:
            ip("netns", "add", namespace)
        inside = "-n", self.bridge
        ip(*inside, "link", "add", "bridge", "type", "bridge")
        ip(*inside, "link", "set", "bridge", "up")
        ip("link", "add", self.device, "type", "veth", "peer", "name", "machine", "netns", self.bridge)
        ip(*inside, "link", "set", "machine", "master", "bridge", "up")
        ip("address", "add", f"{self.prefix}.1/24", "dev", self.device)
        ip("link", "set", self.device, "up")
        for index, (namespace, address) in enumerate(zip(self.namespaces, self.addresses, strict=True)):
            device = f"pod{index}"
            ip(*inside, "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            ip(*inside, "link", "set", device, "master", "bridge", "up")
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            for each in "eth0", "lo":
                ip("-n", namespace, "link", "set", each, "up")

    def remove(self):
        for namespace in self.bridge, *self.namespaces:
            # The devices end with their namespaces.
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)

    def entering(self, index):
        """Returns the start of a command line that runs in the namespace of a pod."""
        return ["nsenter", f"--net=/run/netns/{self.namespaces[index]}"]


def can_connect():
    """True if networks can be made."""
    try:
        with Network(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)
