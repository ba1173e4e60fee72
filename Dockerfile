# The image: one executable, the libraries that it names, certificates; no shell, no package manager, no root.
#
#   docker build -t hilo .                            the CPU
#   docker build -t hilo:tpu --target tpu .           with libtpu, under Google's terms
#   docker build -t hilo:cuda --target cuda .         with XLA's compiler for NVIDIA's GPUs, and NVIDIA's libraries
#   docker build -t hilo:xla-cpu --target xla-cpu .   with XLA's CPU compiler
#
# docs/docker.md says how to run it, how to build it behind a proxy or a mirror, and how to pin what it is built from.
# The slim one has no make, which jemalloc is built with.
ARG RUST_IMAGE=rust:1.95.0-bookworm
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${RUST_IMAGE} AS build
WORKDIR /src
# The commit that `--version` and `/info` show, because the files of git are not copied.
ARG HILO_COMMIT
# Cargo compares times, and files of another checkout may be older than what the cache has of this one: all of them are new.
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    --mount=type=secret,id=ca-certificates,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=cargo-config,target=/usr/local/cargo/config.toml \
    find . -path ./target -prune -o -type f -exec touch {} + \
 && cargo build --release --locked \
 && install -D target/release/text-generation-launcher /image/usr/local/bin/text-generation-launcher \
 && install -D -t /image/usr/share/doc/hilo LICENSE \
 && docker/notices.sh > /image/usr/share/doc/hilo/THIRD_PARTY_NOTICES
# What the executable needs of a system, with its licences. Everybody may write to /data, whoever it is that runs the image.
RUN ldd /image/usr/local/bin/text-generation-launcher | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory /image \
 && cp --parents --dereference /etc/ssl/certs/ca-certificates.crt /image \
 && cp --parents --dereference /usr/share/doc/libc6/copyright /usr/share/doc/libgcc-s1/copyright /usr/share/doc/ca-certificates/copyright /image \
 && echo 'hilo:x:1000:1000:Hilo:/data:/sbin/nologin' > /image/etc/passwd \
 && echo 'hilo:x:1000:' > /image/etc/group \
 && echo 'hosts: files dns' > /image/etc/nsswitch.conf \
 && mkdir --mode 1777 /image/data /image/tmp

FROM scratch AS runtime
COPY --from=build /image /
ARG HILO_COMMIT
LABEL org.opencontainers.image.revision=${HILO_COMMIT}
ENV PATH=/usr/local/bin \
    HOME=/data \
    HF_HOME=/data \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PORT=80
USER 1000:1000
EXPOSE 80
# Loading a large model may take long, and counts as starting until the first answer.
HEALTHCHECK --interval=10s --timeout=6s --retries=3 --start-period=1h \
    CMD ["text-generation-launcher", "health", "--pid", "1"]
ENTRYPOINT ["text-generation-launcher"]

# Plugins are looked for beside the executable, and so are their libraries that it has not.
FROM ${PYTHON_IMAGE} AS plugins
COPY --from=build /image/usr/local/bin/text-generation-launcher /usr/local/bin/

FROM plugins AS tpu-plugin
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=ca-certificates,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip-config,target=/etc/pip.conf \
    text-generation-launcher plugin fetch tpu \
 && install -D -t /image/usr/local/bin /root/.cache/hilo/plugins/*/libtpu.so \
 && ldd /image/usr/local/bin/libtpu.so | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory /image

FROM plugins AS xla-cpu-plugin
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=ca-certificates,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip-config,target=/etc/pip.conf \
    text-generation-launcher plugin fetch cpu \
 && install -D -t /image/usr/local/bin /root/.cache/hilo/plugins/*/xla_cpu_pjrt.so \
 && ldd /image/usr/local/bin/xla_cpu_pjrt.so | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory /image

# The plugin finds NVIDIA's libraries in folders relative to its own. If /etc/debian_version exists, NVIDIA's container runtime
# puts the driver's libraries into Debian's folder, where the loader of this image looks.
FROM plugins AS cuda-plugin
RUN --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    --mount=type=secret,id=ca-certificates,target=/etc/ssl/certs/ca-certificates.crt \
    --mount=type=secret,id=pip-config,target=/etc/pip.conf \
    text-generation-launcher plugin fetch cuda13 \
 && cd /root/.cache/hilo/plugins/jax-cuda13-pjrt-* \
 && mkdir -p /image/usr/local/bin /image/usr/share/doc \
 && mv jax_plugins nvidia /image/usr/local/bin \
 && mv *.dist-info /image/usr/share/doc \
 && find /image/usr/local/bin -name '*.so*' -exec ldd {} + | grep -o '=> /[^ ]*' | cut -c 4- | grep -v '^/image/' | sort -u \
  | xargs cp --parents --dereference --target-directory /image \
 && cp --parents /etc/debian_version /usr/share/doc/libstdc++6/copyright /usr/share/doc/zlib1g/copyright /image

FROM runtime AS tpu
COPY --from=tpu-plugin /image /
ENV DEVICE=tpu

# LD_LIBRARY_PATH is where Kubernetes engines mount the driver.
FROM runtime AS cuda
COPY --from=cuda-plugin /image /
ENV DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64

FROM runtime AS xla-cpu
COPY --from=xla-cpu-plugin /image /
ENV DEVICE=xla-cpu

FROM runtime AS cpu
