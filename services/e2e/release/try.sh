#!/usr/bin/env bash
# Installs a release in every supported way, each time in an empty root directory. It then makes two calls: one that is
# allowed and one that is denied. The script runs in its own mount, process and network namespaces, so nothing can be
# downloaded. The directories with the programs npm and Go are mounted read-only. The script needs root, Node and a Go
# module cache.
#
#   try.sh RELEASE MODULES VERSION
#
# RELEASE is the directory that `make release` wrote. MODULES is a directory that `release modules` wrote.
set -Eeuo pipefail

if [ "${IN_NAMESPACE:-}" != 1 ]; then
  IN_NAMESPACE=1 exec unshare --mount --pid --fork --net --propagation private -- "$0" "$@"
fi
release=$(realpath "$1") modules=$(realpath "$2") version=$3
arch=$(go env GOARCH)
cache=$(go env GOMODCACHE)/cache/download
goroot=$(go env GOROOT)
scratch=$(mktemp -d -p "${TMPDIR:-/tmp}")
mount -t tmpfs tmpfs "$scratch"
trap 'umount --lazy "$scratch" && rmdir "$scratch"' EXIT
mount -t proc proc /proc
ip link set lo up

# root makes an empty root directory with the device nodes, /tmp and an empty home directory.
root() {
  mkdir -p "$scratch/$1"/{dev,proc,tmp,root/work}
  chmod 1777 "$scratch/$1/tmp"
  mount -t proc proc "$scratch/$1/proc"
  for node in null urandom; do
    touch "$scratch/$1/dev/$node"
    mount --bind "/dev/$node" "$scratch/$1/dev/$node"
  done
}

# share makes directories of this system readable in a root directory.
share() {
  local name=$1 directory
  shift
  for directory; do
    mkdir -p "$scratch/$name$directory"
    mount --bind -o ro "$(realpath "$directory")" "$scratch/$name$directory"
  done
}

# inside runs a command in a root directory, with an empty environment.
inside() {
  local name=$1
  shift
  env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin "$(command -v chroot)" "$scratch/$name" "$@"
}

now() { date +%s%3N; } # in milliseconds

# begin records the time at which an installation begins.
begin() {
  echo "== $1"
  begun=$(now)
}

# first prints the version, starts the mesh, and makes the first calls. The arguments are the name of the root directory
# and the command that runs sluice.
first() {
  local name=$1 installed up started denied
  installed=$(($(now) - begun))
  shift
  inside "$name" "$@" version
  started=$(now)
  # The command gets its own process group, so that the signal reaches all its processes, as from a terminal. npx does
  # not forward SIGTERM.
  (exec setsid env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin "$(command -v chroot)" "$scratch/$name" "$@" up) \
    >"$scratch/$name.log" 2>&1 &
  up=$!
  trap 'tail -30 "$scratch/$name.log"' ERR
  timeout 60 sh -c "until grep -q 'http://127.0.0.1:8080/mcp' '$scratch/$name.log'; do sleep 0.1; done"
  inside "$name" "$@" call demo list_notes
  echo "== $name: installed in $installed ms; the first call was answered $(($(now) - started)) ms after the start"
  if denied=$(inside "$name" "$@" call demo delete_note --arg id=note-1 2>&1); then
    echo "delete_note was not denied: $denied"
    return 1
  fi
  echo "$denied"
  grep -q 'Denied by policy' <<<"$denied"
  kill -- "-$up"
  wait "$up" || true
  # npx may end before the program does
  timeout 20 sh -c "while grep -q ' 0100007F:1F90 .* 0A ' /proc/net/tcp; do sleep 0.1; done" # listens on port 8080
  trap - ERR
}

(cd "$release" && sha256sum --quiet --check checksums.txt && stat --format='%s %n' -- *)

root archive
begin archive
mkdir -p "$scratch/archive/usr/local/bin"
tar -C "$scratch/archive/usr/local/bin" -xzf "$release/sluice_${version}_linux_$arch.tar.gz" sluice
first archive sluice

root debian
mkdir -p "$scratch/debian/var/lib/dpkg/"{info,updates}
touch "$scratch/debian/var/lib/dpkg/"{status,available}
begin debian
dpkg --root="$scratch/debian" --force-script-chrootless -i "$release/sluice_${version}_linux_$arch.deb"
first debian sluice

root npm
share npm /usr /lib /lib64 /bin
mkdir -p "$scratch/npm/root/work" "$scratch/npm/etc"
cp "$release/sluice-$version.tgz" "$release"/sluice-linux-*-"$version.tgz" "$scratch/npm/tmp"
cpu=$(node -p process.arch)
begin npm
inside npm sh -c "cd /root/work && npm install --no-audit --no-fund --offline --ignore-scripts \
  /tmp/sluice-linux-$cpu-$version.tgz /tmp/sluice-$version.tgz"
first npm npx --prefix /root/work --offline sluice

root go
share go /usr /lib /lib64 /bin "$goroot" "$modules"
mkdir "$scratch/go/modcache" # not below /root, where the Go command writes its own
mount --bind -o ro "$cache" "$scratch/go/modcache"
begin go
inside go env PATH="$goroot/bin:/usr/bin:/bin" GOPROXY="file://$modules,file:///modcache" GONOSUMDB='*' \
  GOFLAGS=-modcacherw GOTOOLCHAIN=local CGO_ENABLED=0 GOBIN=/root/bin \
  go install "github.com/sluice-mesh/sluice/services/sluice/cmd/sluice@v$version"
stat --format='%s %n' "$scratch/go/root/bin/sluice"
first go /root/bin/sluice
echo "== every way: one call allowed, one denied"
