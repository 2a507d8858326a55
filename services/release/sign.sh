#!/usr/bin/env bash
# Signs the provenance of a release, and verifies the signature with the public key that users have.
#
#   sign.sh KEY RELEASE SIGNERS
#
# KEY is the file of an SSH key, RELEASE is the directory that `make release` wrote, and SIGNERS is the file with the
# public key.
set -euo pipefail
key=$1 provenance=$2/provenance.json signers=$3

rm -f "$provenance.sig" # ssh-keygen asks before it replaces a file
ssh-keygen -q -Y sign -f "$key" -n sluice-release "$provenance"
ssh-keygen -Y verify -f "$signers" -I release@sluice -n sluice-release -s "$provenance.sig" <"$provenance" || {
  rm -f "$provenance.sig"
  echo "The key $key is not the one in $signers, so the release is not signed." >&2
  exit 1
}
