#!/bin/bash
# Makes the secrets that compose.yaml mounts, beside it: an authority, the roles'
# and a client's certificate, a client's token, and the auth file. Keeps existing
# files; remove the folder to start over. The processes in the containers run as
# a different user, so everyone on this machine can read all but the authority's
# key: in production give each process its own volume.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

mkdir -p secrets
[[ -e secrets/member.pem && -e secrets/client.pem ]] ||
  ../tls/certificates.sh secrets server:member,localhost client:client
if [[ ! -e secrets/token ]]; then
  openssl rand -hex 32 > secrets/token
fi
digest=$(tr -d '\n' < secrets/token | sha256sum | cut -d ' ' -f 1)
[[ -e secrets/callers ]] ||
  printf '%s\n' "member certificate member.gshard expert" \
    "client token $digest translate,train,admin" > secrets/callers
chmod a+r secrets/{ca.pem,member.pem,member.key,client.pem,client.key,token,callers}
