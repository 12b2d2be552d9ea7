# The planner as a service; docs/service.md says how to start it. Nothing in it runs as root.
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
RUN python -m venv /opt/moeplan
COPY pyproject.toml constraints.txt README.md ./
COPY solvers solvers
COPY planner planner
COPY executor executor
COPY profiler profiler
COPY moeplan moeplan
RUN /opt/moeplan/bin/pip install --no-cache-dir --disable-pip-version-check \
    -c constraints.txt '.[service]'

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin moeplan \
    && install -d -o moeplan -g moeplan -m 0700 /data
COPY --from=build /opt/moeplan /opt/moeplan
ENV PATH=/opt/moeplan/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    MOEPLAN_STORE=sqlite:////data/moeplan.db
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["moeplan"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--workers", "2"]
