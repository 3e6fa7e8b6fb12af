# The image of deploy/: `docker build -t dranode:0.1.0 .`
# For builds that give the same bytes every time, pass the base by digest: --build-arg BASE=python@sha256:...
ARG BASE=python:3.11.13-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY requirements/ requirements/
# Wheels alone and every one by its hash, so that nothing is compiled and nothing else gets in.
RUN python -m venv --without-pip /opt/dranode \
    && pip --python /opt/dranode/bin/python install --no-cache-dir --no-compile --only-binary=:all: \
        --require-hashes -r requirements/serve.lock \
    && awk '/^[^ ]/ {keep = /^setuptools==/} keep' requirements/dev.lock > build.lock \
    && pip install --no-cache-dir --only-binary=:all: --require-hashes -r build.lock
COPY pyproject.toml README.md LICENSE ./
COPY cdi/ cdi/
COPY proto/ proto/
COPY driver/ driver/
COPY cpu/ cpu/
COPY gpu/ gpu/
COPY sim/ sim/
# Bytecode is made here, once: the root file system is read-only later, and a driver has to start fast.
RUN pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && pip --python /opt/dranode/bin/python install --no-index --no-deps --no-compile wheels/*.whl \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/dranode/lib

FROM ${BASE}
# What installs packages has no business on a node.
RUN pip uninstall -q -y --root-user-action=ignore setuptools wheel pip
COPY --from=build /opt/dranode /opt/dranode
ENV PATH=/opt/dranode/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# root, without capabilities: kubelet's folders and the runtime's socket are root's.
USER 0:0
ENTRYPOINT ["dranode"]
CMD ["serve"]
