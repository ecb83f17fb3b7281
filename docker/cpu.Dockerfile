# crispseg for machines without a GPU. From the checkout's root:
#   docker build -f docker/cpu.Dockerfile -t crispseg .
#   docker run --rm -v "$PWD:/data" crispseg predict city.tif -o map.tif
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir -c constraints.txt build \
    && python -m build --wheel --outdir /dist

FROM python:3.13-slim
# PyTorch's own index has a build without CUDA, a tenth of the size: docker build --build-arg TORCH_INDEX=URL ...
ARG TORCH_INDEX=
WORKDIR /install
COPY --from=build /dist ./
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} torch \
    && pip install --no-cache-dir -c constraints.txt ./*.whl
RUN useradd --create-home --uid 1000 crisp
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["crisp"]
CMD ["--help"]
