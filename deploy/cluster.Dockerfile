# The image of every pod of deploy/kuberay-cluster.yaml; build it in the repository's folder:
#     docker build --file deploy/cluster.Dockerfile --tag calsweep:1.1.0 .
FROM python:3.11-slim
# `compile: true` needs g++ to build kernels (Python's headers are in the base image). KubeRay's probes
# need wget; without it, pods never become ready.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ wget \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/calsweep
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY orchestrator orchestrator
COPY search_spaces search_spaces
COPY trainables trainables
COPY calsweep calsweep
RUN pip install --no-cache-dir --constraint constraints.txt '.[cluster]' \
    && useradd --create-home --uid 1000 ray
USER ray
WORKDIR /home/ray
