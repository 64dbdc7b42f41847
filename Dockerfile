# Two stages: the first needs the network and build tools, the second neither, and nothing is fetched at start.
FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Dependencies first: they change less often than the code.
COPY requirements.lock ./
RUN python -m venv /opt/palimpsest \
 && /opt/palimpsest/bin/pip install --no-deps --require-hashes -r requirements.lock
# The build back end is pinned like everything else, so that no isolated build environment is fetched.
COPY requirements-dev.lock ./
RUN python -m venv /opt/build && /opt/build/bin/pip install --no-deps --require-hashes -r requirements-dev.lock
COPY pyproject.toml README.md LICENSE ./
COPY config config
COPY compaction compaction
COPY store store
COPY gateway gateway
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/palimpsest/bin/pip install --no-deps --no-index /wheels/*.whl

FROM python:3.11-slim
COPY --from=build /opt/palimpsest /opt/palimpsest
RUN useradd --system --uid 10001 --home-dir /data --no-create-home palimpsest \
 && install -d -o palimpsest -g palimpsest -m 0700 /data
USER palimpsest
WORKDIR /data
VOLUME /data
ENV PATH=/opt/palimpsest/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PALIMPSEST_HOST=0.0.0.0 \
    PALIMPSEST_STORE_URL=sqlite:////data/palimpsest.db
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ.get(\"PALIMPSEST_PORT\") or 8080}/healthz', timeout=2)"]
# SIGTERM lets open streams finish for up to `server.shutdown_grace` seconds; give `docker stop` a longer time.
STOPSIGNAL SIGTERM
ENTRYPOINT ["palimpsest"]
CMD ["serve"]
