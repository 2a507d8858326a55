#!/usr/bin/env bash
# Prints a commit whose parent is HEAD and that also contains the archive of the guests, which git ignores. The tags of
# a release name this commit, so that `go install` gets the guests. The script changes no branch and no working tree.
#
#   commit.sh VERSION
set -euo pipefail
cd "$(git -C "$(dirname "$0")" rev-parse --show-toplevel)"
guests=services/wasmagent/internal/modules/dist/guests.tar.zst

if ! grep -q "github.com/sluice-mesh/sluice/gen v$1\$" services/go.mod; then
  echo "services/go.mod does not require gen v$1: commit this change first" >&2
  exit 1
fi
if [ ! -f "$guests" ]; then
  echo "$guests does not exist: run make guests" >&2
  exit 1
fi
index=$(mktemp -d)
trap 'rm -rf "$index"' EXIT
export GIT_INDEX_FILE=$index/index
git read-tree HEAD
git update-index --add --cacheinfo "100644,$(git hash-object -w "$guests"),$guests"
date=$(git show -s --format=%cI HEAD) # the same date each time, so that the same person gets the same commit again
GIT_AUTHOR_DATE=$date GIT_COMMITTER_DATE=$date git commit-tree -p HEAD -m "Release v$1" "$(git write-tree)"
