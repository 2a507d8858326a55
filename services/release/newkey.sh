#!/usr/bin/env bash
# Makes the key that signs releases, and writes its public key to SIGNERS, a file for `ssh-keygen -Y verify`.
#
#   newkey.sh KEY SIGNERS [OPTION OF SSH-KEYGEN…]
set -euo pipefail
key=$1 signers=$2

for file in "$key" "$signers"; do
  [ ! -e "$file" ] || {
    echo "$file exists: the key is made only once" >&2
    exit 1
  }
done
ssh-keygen -q -t ed25519 -C release@sluice -f "$key" "${@:3}"
echo "release@sluice namespaces=\"sluice-release\" $(cut -d' ' -f1,2 "$key.pub")" >"$signers"
echo "Commit $signers, and keep a copy of $key in a safe place."
