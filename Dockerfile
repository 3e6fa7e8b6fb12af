# The image of deploy/: `docker build -t dranode:0.1.0 .`; with --target debug the one that has pip,
# and renews the tokens of an auth-provider. Two builds as `make release` makes them give the same image.
ARG BASE=python:3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

FROM ${BASE} AS python
# The base has Python's own modules without bytecode, and the root file system is read-only later: every start and every command
# would compile those that it loads, which takes longer than all else that it does. Left out is what nobody here loads.
RUN PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode timestamp \
        -x '/(ensurepip|idlelib|lib2to3|pydoc_data|site-packages|dist-packages|test|tests|tkinter|turtledemo|unittest)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

FROM python AS build
WORKDIR /src
COPY requirements/ requirements/
# Wheels alone and every one by its hash, so that nothing is compiled and nothing else gets in: the lock leaves out what rich
# needs for source code and Markdown alone (pygments), which takes 9 MB.
RUN python3 -m venv --without-pip /opt/dranode \
    && python3 -m venv /opt/build \
    && /opt/build/bin/pip --python /opt/dranode/bin/python install --no-cache-dir --no-compile --no-deps \
        --only-binary=:all: --require-hashes -r requirements/serve.lock \
    && awk '/^[^ ]/ {keep = /^setuptools==/} keep' requirements/dev.lock > build.lock \
    && /opt/build/bin/pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes -r build.lock
COPY pyproject.toml README.md LICENSE ./
COPY api/ api/
COPY cdi/ cdi/
COPY proto/ proto/
COPY driver/ driver/
COPY cpu/ cpu/
COPY gpu/ gpu/
COPY memory/ memory/
COPY sim/ sim/
COPY show/ show/
COPY tools/ tools/
COPY sanity/ sanity/
ARG SOURCE_DATE_EPOCH=0
# From an index of one folder, since pip writes down where a file that is named comes from. Bytecode is made here, once: the root
# file system is read-only later, and a driver has to start fast. One process makes it, in one order, so that it is the same again.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && /opt/build/bin/pip --python /opt/dranode/bin/python install --no-index --find-links wheels --no-deps --no-compile dranode \
    && PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash /opt/dranode/lib \
    && find /opt/dranode -exec touch -h -d "@${SOURCE_DATE_EPOCH}" {} +

FROM build AS build-debug
ARG SOURCE_DATE_EPOCH=0
# With pip, by which others put a driver of their own into the image (docs/install.md).
RUN cp -r /opt/build/lib/python3*/site-packages/pip /opt/dranode/lib/python3*/site-packages/ \
    && /opt/build/bin/pip --python /opt/dranode/bin/python install --no-cache-dir --no-compile --only-binary=:all: \
        --require-hashes -r requirements/debug.lock \
    && PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash /opt/dranode/lib \
    && find /opt/dranode -exec touch -h -d "@${SOURCE_DATE_EPOCH}" {} +

FROM python AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title=dranode \
      org.opencontainers.image.description="Kubernetes DRA node drivers for CPUs, memory and GPUs" \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.revision=${REVISION}
# The allocator is set for a daemon that is small on every node, as `serve` does it itself where these are missing.
ENV PATH=/opt/dranode/bin:$PATH PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=1 MALLOC_TRIM_THRESHOLD_=131072
# What installs packages has no business on a node.
RUN if python3 -m pip --version >/dev/null 2>&1; then \
        python3 -m pip uninstall -q -y --root-user-action=ignore setuptools wheel pip; fi \
    && rm -rf "$(python3 -c 'import ensurepip; print(*ensurepip.__path__)')" /usr/share/python-wheels
# root, without capabilities: kubelet's folders and the runtime's socket are root's.
USER 0:0
ENTRYPOINT ["dranode"]
CMD ["serve"]

FROM base AS debug
COPY --from=build-debug /opt/dranode /opt/dranode

FROM base AS serve
COPY --from=build /opt/dranode /opt/dranode
