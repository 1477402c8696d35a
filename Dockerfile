ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PYTHON=/venv/bin/python \
    PIP_CACHE_DIR=/pip
RUN python -m venv --without-pip /venv
WORKDIR /build
COPY requirements*.txt ./

# Converts the models with the same ONNX Runtime for every flavour, on a CPU.
FROM packages AS models
RUN --mount=type=cache,target=/pip \
    grep -hE '^(numpy|opencv|onnxruntime)' requirements-base.txt requirements.txt > pins.txt \
    && pip install -r pins.txt -r requirements-models.txt
ENV PATH=/venv/bin:$PATH
COPY dvc.yaml dvc.lock params.yaml ./
COPY .dvc .dvc
COPY models models
COPY styleserve styleserve
# Quiet, it hides what is wrong.
RUN (dvc repro --quiet || dvc repro) && rm -r models/raw

FROM packages AS server-packages
# Or requirements-gpu.txt: only the lines of ONNX Runtime are taken, the page is no part of the server.
ARG REQUIREMENTS=requirements.txt
RUN --mount=type=cache,target=/pip \
    grep -E '^(onnx|-c)' ${REQUIREMENTS} > flavour.txt \
    && pip install -r flavour.txt -r requirements-server.txt

FROM packages AS client-packages
RUN --mount=type=cache,target=/pip pip install -r requirements-page.txt

FROM ${BASE} AS runtime
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin styleserve
WORKDIR /app

FROM runtime AS client
COPY --from=client-packages /venv /venv
COPY docs docs
COPY styleserve styleserve
COPY client.py ./
USER 10001:10001
EXPOSE 7860
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --start-interval=2s CMD ["python", "-c", "\
from urllib.request import urlopen; from styleserve import settings; \
urlopen(f'http://127.0.0.1:{settings.load_client().client_port}/health', timeout=5)"]
ENTRYPOINT ["python", "client.py"]

FROM runtime AS server
# Triton is started from here, so a tmpfs in its place needs the option exec.
ENV STYLESERVE_CACHE_DIR=/cache
# Init: what a dead Triton leaves behind belongs to process 1, and Python would never collect it.
RUN install -d -o 10001 -g 10001 /cache \
    && apt-get update && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=server-packages /venv /venv
COPY --from=models /build/models models
COPY styleserve styleserve
COPY server.py ./
USER 10001:10001
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=15s --timeout=10s --start-period=120s --start-interval=2s CMD ["python", "-c", "\
from styleserve import health, settings; \
raise SystemExit(not health.is_ready('127.0.0.1', settings.load([]).http_port))"]
ENTRYPOINT ["tini", "--", "python", "server.py"]
