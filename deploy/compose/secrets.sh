#!/bin/bash
# Makes what compose.yaml mounts as secrets, beside it: an authority, the roles'
# and a client's certificate, a client's token, and the file of callers. Keeps
# what is there; remove the folder to begin anew. The processes in the containers
# run as another user than you, so everybody on this machine can read the
# member's key: give each process a volume of its own in earnest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

mkdir -p secrets
[[ -e secrets/member.pem && -e secrets/client.pem ]] ||
  ../tls/certificates.sh secrets server:member,localhost client:client
if [[ ! -e secrets/token ]]; then
  (umask 077 && openssl rand -hex 32 > secrets/token)
fi
digest=$(tr -d '\n' < secrets/token | sha256sum | cut -d ' ' -f 1)
[[ -e secrets/callers ]] ||
  printf '%s\n' "member certificate member.gshard expert" \
    "client token $digest translate,train,admin" > secrets/callers
chmod a+r secrets/{ca.pem,member.pem,member.key,callers}
