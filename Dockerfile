# The README's two commands, on a CPU and without root (docs/install.md):
#   docker build --target inf -t inf . && docker run --rm inf "What is the capital of France?"
#   docker build --target tests .
FROM debian:bookworm-slim AS inf
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home inf \
    && install -d -o 1000 /opt/inf
USER 1000
WORKDIR /opt/inf
# Else the image would hold every downloaded package twice.
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1
COPY --chown=1000 . .
RUN bash install.sh && .venv/bin/inf "What is the capital of France?"
ENV PATH=/opt/inf/.venv/bin:$PATH
ENTRYPOINT ["inf"]

FROM inf AS tests
RUN bash install.sh && .venv/bin/python -m pytest
