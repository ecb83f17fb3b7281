# crispseg for NVIDIA GPUs; the host needs a driver and the container toolkit. From the checkout's root:
#   docker build -f docker/cuda.Dockerfile -t crispseg:cuda .
#   docker run --rm --gpus all -v "$PWD:/data" crispseg:cuda train my_folder
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt build \
    && python -m build --wheel --outdir /dist

FROM python:3.13-slim
# PyPI's torch brings the CUDA libraries along, so no CUDA image is needed below; Triton compiles its launchers with gcc.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /install
COPY --from=build /dist ./
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt ./*.whl
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --create-home --uid 1000 crisp
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["crisp"]
CMD ["--help"]
