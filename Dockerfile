# The command `allfold` in a container. The steps are those of scripts/image.sh, which runs without a container too.
#
#   docker build -t allfold .
#   docker run --rm -v "$PWD":/data allfold report --quick --out /data/allfold-report

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN scripts/image.sh build /out

FROM debian:bookworm-slim
COPY --from=build /out /usr/local
COPY scripts/image.sh /usr/local/share/allfold/image.sh
RUN /usr/local/share/allfold/image.sh check /usr/local
WORKDIR /data
ENTRYPOINT ["allfold"]
