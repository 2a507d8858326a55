#!/usr/bin/env bash
# Builds local stand-ins for the images that compose would pull, where a registry
# of images can't be reached, and prints what to export. Needs Docker, Go 1.26 and
# a proxy of Go modules; for the image of servers.yaml, which it makes where npm is in
# PATH, a registry of npm's. Run it as often as you like: what is there is kept.
#
#   eval "$(deploy/local-images.sh)" && docker compose up --build
#
# Variables: GOLANG_IMAGE, JAEGER_IMAGE and NODE_IMAGE are kept where they name an image
# that is there. JAEGER_BINARY is a Jaeger all-in-one for Linux that you have already.
set -euo pipefail

jaeger_version=v1.76.0
go_version=1.26
node_version=22.23.2
npm_version=10.9.4

say() { echo "local-images: $*" >&2; }
die() { say "$*"; exit 1; }
have() { docker image inspect "$1" >/dev/null 2>&1; }

docker info >/dev/null 2>&1 || die "the Docker engine does not answer: start it, then run this again"
command -v go >/dev/null || die "Go is not in PATH: install Go $go_version (https://go.dev/dl)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# An image with this machine's Go toolchain, a shell and the CA certificates.
build_golang() {
  local goroot
  goroot=$(go env GOROOT)
  [[ $(go env GOOS) == linux ]] || die "the stand-in for golang:$go_version is made of a Linux machine's own toolchain: run this on Linux, or set GOLANG_IMAGE"
  [[ $(go env GOVERSION) == go$go_version* ]] || die "the toolchain is $(go env GOVERSION), want go$go_version"
  say "making $1 of $goroot"
  # -h follows links, so that /bin and /lib become plain folders.
  tar -C / -ch --hard-dereference --exclude="${goroot#/}/test" --exclude="${goroot#/}/pkg/obj" \
    "${goroot#/}" etc/ssl/certs/ca-certificates.crt bin/sh bin/mkdir \
    $(ldd /bin/sh /bin/mkdir | grep -o '/lib[^ ]*' | sort -u | sed 's#^/##') |
    docker import -c "ENV PATH=$goroot/bin:/bin" -c 'ENV GOTOOLCHAIN=local' -c 'ENV HOME=/root' \
      -c 'ENV TMPDIR=/' - "$1" >/dev/null
}

# Jaeger's all-in-one, built from its Go module. Its web page is not in the module;
# its API is whole.
build_jaeger() {
  local binary=${JAEGER_BINARY:-} dir
  if [[ -z $binary ]]; then
    say "building $1 from its Go module: some minutes, once"
    dir=$(go mod download -json "github.com/jaegertracing/jaeger@$jaeger_version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    # The module has replace directives, so it is built from a copy.
    cp -r "$dir/." "$work/jaeger" && chmod -R u+w "$work/jaeger"
    binary=$work/all-in-one
    (cd "$work/jaeger" && GOWORK=off CGO_ENABLED=0 GOOS=linux GOARCH=$(docker version --format '{{.Server.Arch}}') \
      go build -trimpath -ldflags='-s -w' -o "$binary" ./cmd/all-in-one)
  fi
  mkdir "$work/image"
  install -D -m 755 "$binary" "$work/image/go/bin/all-in-one-linux" # as in Jaeger's own image
  tar -C "$work/image" -c . | docker import -c 'ENTRYPOINT ["/go/bin/all-in-one-linux"]' - "$1" >/dev/null
}

# Node and npm, both as npm has them, with this machine's shell and C libraries.
build_node() {
  local arch=x64 files
  [[ $(uname -sm) == Linux\ * ]] || die "the stand-in for node is made of a Linux machine's own C libraries: run this on Linux, or set NODE_IMAGE"
  [[ $(uname -m) == aarch64 ]] && arch=arm64
  say "making $1 of Node $node_version"
  npm install --silent --no-save --no-audit --no-fund --prefix "$work/node" "node-linux-$arch@$node_version" "npm@$npm_version"
  mkdir -p "$work/root/usr/local/lib/node_modules" "$work/root/usr/local/bin" "$work/root/usr/bin" "$work/root/tmp"
  cp -r "$work/node/node_modules/npm" "$work/root/usr/local/lib/node_modules/"
  install -m 755 "$work/node/node_modules/node-linux-$arch/bin/node" "$work/root/usr/local/bin/node"
  ln -s ../lib/node_modules/npm/bin/npm-cli.js "$work/root/usr/local/bin/npm"
  files=$(ldd /bin/sh /bin/mkdir /bin/cp /usr/bin/env "$work/root/usr/local/bin/node" | grep -o '/lib[^ ]*' | sort -u | sed 's#^/##')
  # -h follows links, so that /bin and /lib become plain folders.
  tar -C / -ch etc/ssl/certs/ca-certificates.crt bin/sh bin/mkdir bin/cp usr/bin/env $files |
    tar -C "$work/root" -x
  tar -C "$work/root" -c . | docker import -c 'ENV PATH=/usr/local/bin:/usr/bin:/bin' -c 'ENV HOME=/tmp' \
    -c 'ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt' - "$1" >/dev/null
}

# choose NAME DEFAULT STAND-IN BUILD prints which image to use, built if need be.
choose() {
  local image
  for image in "${!1:-$2}" "$3"; do
    if have "$image"; then
      echo "export $1=$image"
      return
    fi
  done
  "$4" "$3" >&2
  echo "export $1=$3"
}

choose GOLANG_IMAGE "golang:$go_version" "sluice-local/golang:$go_version" build_golang
choose JAEGER_IMAGE "jaegertracing/all-in-one:${jaeger_version#v}" "sluice-local/jaeger:${jaeger_version#v}" build_jaeger
if [[ -n ${NODE_IMAGE:-} ]] || have node:22-bookworm-slim || command -v npm >/dev/null; then
  choose NODE_IMAGE node:22-bookworm-slim "sluice-local/node:$node_version" build_node
fi
