# Hearth in containers: the server, and with `--target train` the trainer. Both run as a non-root user and write only to what is
# mounted, so a read-only root file system suits them.
#
#   DOCKER_BUILDKIT=1 docker build -t hearth .
#   docker run --rm --read-only -p 8080:8080 hearth                                       the bundled model
#   docker run --rm --read-only -p 8080:8080 -v "$PWD/DIR:/data:ro" hearth serve --model /data
#   docker run --rm --read-only -p 8080:8080 -v hearth-models:/models hearth serve --model ORG/NAME
#   DOCKER_BUILDKIT=1 docker build -t hearth-train --target train .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" hearth-train quickstart FILE.txt --out RUN
#   deploy/train/mpijob.yaml                                                              on several machines, with MPI
#
# Without API keys the server answers at localhost, at addresses and at the container's own host name. For other names, such as
# the machine's or a compose service's, add `--hostname NAME` or `-e HEARTH_ALLOWED_HOST=NAME`.

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# The registry and cargo's output stay with the builder from one build to the next: a change of our code compiles our code alone.
# The output is not in the image, so what is wanted of it is copied out, without its symbols.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/target,sharing=locked \
    CARGO_TARGET_DIR=/target cargo build --release --locked --workspace --bins \
    && mkdir /out \
    && strip -o /out/hearth /target/release/hearth

# The trainer, with MPI: only it and its crate are compiled here, and only for the image of training.
FROM build AS build-train
RUN apt-get update && apt-get install -y --no-install-recommends libopenmpi-dev pkg-config
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/target,sharing=locked \
    CARGO_TARGET_DIR=/target cargo build --release --locked --workspace --bins --features hearth-training/mpi \
    && strip -o /out/hearth-train /target/release/hearth-train

FROM debian:bookworm-slim AS runtime
# The Vulkan loader, for a GPU whose driver the container is given. Without one, Hearth runs on the CPU.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libvulkan1 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log \
    && install -d -o 10001 -g 10001 /models
# Models of the hub are kept here: a volume keeps them from one container to the next.
ENV HF_HOME=/models
# A number, so that an orchestrator can see that it is not root. It has no home, and the working directory is not its to write.
USER 10001:10001
WORKDIR /data

FROM runtime AS train
LABEL org.opencontainers.image.title="Hearth, training" \
      org.opencontainers.image.description="Trains and fine-tunes GPT-style language models, on any GPU through Vulkan and on a plain CPU" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
USER root
# MPI starts processes on other machines by ssh. The user has a name for it, and its keys are mounted at `/home/hearth/.ssh`, as the
# MPI operator does; the server of ssh runs as this user, on a port that is open to it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends openmpi-bin openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log /etc/ssh/ssh_host_* \
    && useradd --uid 10001 --user-group --create-home hearth \
    && printf '%s\n' 'Port 2222' 'HostKey /home/hearth/.ssh/id_rsa' 'PidFile none' 'StrictModes no' 'UsePAM no' \
        'PasswordAuthentication no' >/etc/ssh/hearth.conf \
    && printf '%s\n' 'Port 2222' 'StrictHostKeyChecking no' 'UserKnownHostsFile /dev/null' 'LogLevel ERROR' \
        >/etc/ssh/ssh_config.d/hearth.conf
USER 10001:10001
COPY --from=build-train /out/hearth-train /usr/local/bin/
ENTRYPOINT ["hearth-train"]
CMD ["--help"]

FROM runtime
LABEL org.opencontainers.image.title="Hearth" \
      org.opencontainers.image.description="Serves GPT-style language models, on any GPU through Vulkan and on a plain CPU" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
COPY --from=build /out/hearth /usr/local/bin/
ENV HEARTH_HOST=0.0.0.0 HEARTH_PORT=8080
EXPOSE 8080
STOPSIGNAL SIGTERM
# Reads the server's settings from the same variables, so it follows the port and speaks TLS where the server does.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["hearth", "health"]
ENTRYPOINT ["hearth"]
CMD ["serve"]
