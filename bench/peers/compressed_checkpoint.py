"""Converts a bf16 checkpoint to an integer checkpoint that vLLM reads (compressed-tensors).

    python3 bench/peers/compressed_checkpoint.py FOLDER int8|int4 OUTPUT

int8: one scale per output; activations are quantized to int8, with one scale per token. int4: one scale per group of
128 inputs; activations stay bf16. Embedding and output head stay bf16, as with vLLM's own tools. Needs torch and
safetensors.
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors import safe_open
from safetensors.torch import save_file

GROUP = 128
SCHEMES = {
    "int8": {
        "format": "int-quantized",
        "weights": dict(num_bits=8, type="int", symmetric=True, strategy="channel", dynamic=False),
        "input_activations": dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True),
    },
    "int4": {
        "format": "pack-quantized",
        "weights": dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP, dynamic=False),
        "input_activations": None,
    },
}


def int8(name, weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    yield f"{name}.weight", (weight / scale).round().to(torch.int8)
    yield f"{name}.weight_scale", scale.bfloat16()


def int4(name, weight):
    outputs, inputs = weight.shape
    groups = weight.view(outputs, -1, GROUP)
    scale = groups.abs().amax(2, keepdim=True) / 7
    digits = ((groups / scale).round() + 8).to(torch.int32).view(outputs, -1, 8)
    # A 32-bit word contains eight 4-bit values, the first of them in the lowest bits.
    yield f"{name}.weight_packed", sum(digits[..., place] << 4 * place for place in range(8))
    yield f"{name}.weight_scale", scale.view(outputs, -1).bfloat16()
    yield f"{name}.weight_shape", torch.tensor([outputs, inputs])


def config(folder, kind):
    scheme = SCHEMES[kind]
    group = {"targets": ["Linear"], "weights": scheme["weights"], "input_activations": scheme["input_activations"]}
    quantization = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": scheme["format"],
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    return json.loads((folder / "config.json").read_text()) | {"quantization_config": quantization}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("kind", choices=SCHEMES)
    parser.add_argument("output", type=pathlib.Path)
    args = parser.parse_args()
    quantized = {"int8": int8, "int4": int4}[args.kind]
    tensors = {}
    with safe_open(args.folder / "model.safetensors", "pt") as source:
        for name in source.keys():
            value = source.get_tensor(name)
            is_linear = value.dim() == 2 and "embed_tokens" not in name
            tensors.update(quantized(name.removesuffix(".weight"), value.float()) if is_linear else {name: value})
    args.output.mkdir(parents=True, exist_ok=True)
    for path in args.folder.glob("*.json"):
        shutil.copy(path, args.output)
    (args.output / "config.json").write_text(json.dumps(config(args.folder, args.kind), indent=2))
    save_file(tensors, args.output / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
