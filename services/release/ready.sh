#!/usr/bin/env bash
# Checks that a release can be made from this commit, before the long build.
#
#   ready.sh VERSION KEY UNSIGNED
#
# KEY is the file of the SSH key that signs the release. If UNSIGNED is 1, KEY may be empty.
set -euo pipefail
version=$1 key=$2 unsigned=$3
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"

fail() {
  echo "make release: $1" >&2
  exit 1
}

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] ||
  fail "VERSION is \"$version\": set it to a version such as 0.1.0"
if [ -n "$key" ]; then
  [ -f "$key" ] || fail "the key $key does not exist: docs/releases.md describes how to make it"
  [ -f docs/release-signers ] || fail "docs/release-signers does not exist: docs/releases.md describes how to make it"
else
  [ "$unsigned" = 1 ] || fail "KEY is not set: set it to the file of the key, or set UNSIGNED=1 to try the build"
fi
grep -q "github.com/sluice-mesh/sluice/gen v$version\$" services/go.mod ||
  fail "services/go.mod does not require gen v$version: commit this change first"
[ -z "$(git status --porcelain)" ] ||
  fail "the working tree has changes, but the files of a release name a commit: commit the changes first"
