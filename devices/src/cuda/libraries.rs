//! NVIDIA's libraries for the plugin of GPUs. docs/plugins.md says how this list was found.

use crate::plugins::{DataFile, Driver, Libraries, Package, Wheel};

/// The tags that the wheels of all these packages have in common.
const WHEEL: Wheel = Wheel {
    file_name: "",
    sha256: "",
    size_bytes: 0,
    platform: "",
    python_version: "3.11",
    implementation: "py",
    abi: "none",
};

/// The libraries of the plugin.
pub(super) const LIBRARIES: Libraries = Libraries {
    packages: PACKAGES,
    // The RPATH of the plugin, without TensorRT's folders: only TensorFlow uses TensorRT.
    folders: &[
        "../../nvidia/cu13/lib",
        "../nvidia/cu13/lib",
        "../../nvidia/cudnn/lib",
        "../nvidia/cudnn/lib",
        "../../nvidia/nccl/lib",
        "../nvidia/nccl/lib",
    ],
    driver: Driver {
        opened: &["libcuda.so.1"],
        name: "NVIDIA's driver",
        remedy: "install NVIDIA's driver 580 or newer, or give the container the GPUs (docker run --gpus all)",
    },
    // XLA takes libdevice from the first of these folders that has `nvvm/libdevice`.
    data: DataFile {
        path: "nvvm/libdevice/libdevice.10.bc",
        system_folders: &["usr/local/cuda", "opt/cuda"],
        folders: &["../nvidia/cu13", "../../nvidia/cu13", "cuda", "../../../..", "../../../../.."],
        flag: "--xla_gpu_cuda_data_dir=",
    },
};

const PACKAGES: &[Package] = &[
    Package {
        name: "nvidia-cuda-runtime",
        version: "13.5.37",
        wheel: Wheel {
            file_name: "nvidia_cuda_runtime-13.5.37-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            sha256: "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
            size_bytes: 2_504_024,
            platform: "manylinux_2_17_x86_64",
            ..WHEEL
        },
        files: &["nvidia/cu13/lib/libcudart.so.13", "nvidia_cuda_runtime-13.5.37.dist-info/licenses/License.txt"],
        opened: &["libcudart.so.13"],
        is_for_several_devices: false,
    },
    Package {
        name: "nvidia-cublas",
        version: "13.10.0.20",
        wheel: Wheel {
            file_name: "nvidia_cublas-13.10.0.20-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl",
            sha256: "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84",
            size_bytes: 444_289_903,
            platform: "manylinux_2_5_x86_64",
            ..WHEEL
        },
        files: &[
            "nvidia/cu13/lib/libcublas.so.13",
            "nvidia/cu13/lib/libcublasLt.so.13",
            "nvidia_cublas-13.10.0.20.dist-info/licenses/License.txt",
        ],
        opened: &["libcublas.so.13", "libcublasLt.so.13"],
        is_for_several_devices: false,
    },
    Package {
        name: "nvidia-nvjitlink",
        version: "13.5.37",
        wheel: Wheel {
            file_name: "nvidia_nvjitlink-13.5.37-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
            sha256: "280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb",
            size_bytes: 46_642_491,
            platform: "manylinux_2_12_x86_64",
            ..WHEEL
        },
        files: &["nvidia/cu13/lib/libnvJitLink.so.13", "nvidia_nvjitlink-13.5.37.dist-info/licenses/License.txt"],
        opened: &["libnvJitLink.so.13"],
        is_for_several_devices: false,
    },
    Package {
        name: "nvidia-nvvm",
        version: "13.5.37",
        wheel: Wheel {
            file_name: "nvidia_nvvm-13.5.37-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
            sha256: "c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070",
            size_bytes: 75_141_406,
            platform: "manylinux_2_12_x86_64",
            ..WHEEL
        },
        files: &["nvidia/cu13/nvvm/libdevice/libdevice.10.bc", "nvidia_nvvm-13.5.37.dist-info/licenses/License.txt"],
        opened: &[],
        is_for_several_devices: false,
    },
    Package {
        name: "nvidia-cudnn-cu13",
        version: "9.28.1.4",
        wheel: Wheel {
            file_name: "nvidia_cudnn_cu13-9.28.1.4-py3-none-manylinux_2_27_x86_64.whl",
            sha256: "a54f205b1db1f2895d99f398754db1369816f0569dd459731f925635cf7b65ec",
            size_bytes: 516_817_937,
            platform: "manylinux_2_27_x86_64",
            ..WHEEL
        },
        files: &[
            "nvidia/cudnn/lib/libcudnn.so.9",
            "nvidia/cudnn/lib/libcudnn_adv.so.9",
            "nvidia/cudnn/lib/libcudnn_cnn.so.9",
            "nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9",
            "nvidia/cudnn/lib/libcudnn_engines_runtime_compiled.so.9",
            "nvidia/cudnn/lib/libcudnn_engines_tensor_ir.so.9",
            "nvidia/cudnn/lib/libcudnn_ext.so.9",
            "nvidia/cudnn/lib/libcudnn_graph.so.9",
            "nvidia/cudnn/lib/libcudnn_heuristic.so.9",
            "nvidia/cudnn/lib/libcudnn_ops.so.9",
            "nvidia_cudnn_cu13-9.28.1.4.dist-info/licenses/License.txt",
        ],
        opened: &["libcudnn.so.9"],
        is_for_several_devices: false,
    },
    Package {
        name: "nvidia-cuda-nvrtc",
        version: "13.5.37",
        wheel: Wheel {
            file_name: "nvidia_cuda_nvrtc-13.5.37-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
            sha256: "86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc",
            size_bytes: 58_185_930,
            platform: "manylinux_2_12_x86_64",
            ..WHEEL
        },
        files: &[
            "nvidia/cu13/lib/libnvrtc-builtins.so.13.5",
            "nvidia/cu13/lib/libnvrtc.so.13",
            "nvidia_cuda_nvrtc-13.5.37.dist-info/licenses/License.txt",
        ],
        opened: &[],
        is_for_several_devices: false,
    },
    Package {
        name: "nvidia-nccl-cu13",
        version: "2.32.3",
        wheel: Wheel {
            file_name: "nvidia_nccl_cu13-2.32.3-py3-none-manylinux_2_27_x86_64.whl",
            sha256: "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3",
            size_bytes: 305_100_071,
            platform: "manylinux_2_27_x86_64",
            ..WHEEL
        },
        files: &["nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl_cu13-2.32.3.dist-info/licenses/License.txt"],
        opened: &["libnccl.so.2"],
        is_for_several_devices: true,
    },
];
