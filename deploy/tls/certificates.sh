#!/bin/bash
# A small authority and its certificates, for tests and the compose file. On a
# cluster use its own (cert-manager, your company's authority).
#
#   deploy/tls/certificates.sh DIR [--days N] KIND:NAME[,HOST...] ...
#
#   deploy/tls/certificates.sh tls server:member,localhost,127.0.0.1 client:ops
#
# Makes DIR/ca.pem and DIR/ca.key, unless they are there, and DIR/NAME.pem and
# DIR/NAME.key for each, in place of those that are there. A server's
# certificate has the names "gshard", NAME.gshard and its HOSTs; processes that
# run with --tls_peer_name=gshard accept it at any address. A client's has
# NAME.gshard alone. --auth_file gives roles to such names.
set -euo pipefail

die() { echo "certificates.sh: $*" >&2; exit 2; }

[[ $# -ge 2 ]] || die "expected a folder and certificates to make, see the file"
folder=$1
shift
days=365
if [[ $1 == --days ]]; then
  days=$2
  shift 2
fi
mkdir -p "$folder"
umask 077

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

if [[ ! -e $folder/ca.pem ]]; then
  new_key "$folder/ca.key"
  openssl req -x509 -new -key "$folder/ca.key" -days 3650 -sha256 \
    -subj "/O=gshard/CN=gshard test authority" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -out "$folder/ca.pem"
fi

for wanted in "$@"; do
  kind=${wanted%%:*}
  IFS=, read -ra names <<< "${wanted#*:}"
  name=${names[0]:-}
  [[ $name =~ ^[a-z0-9_.-]+$ && $name != ca ]] || die "bad name in '$wanted'"
  case $kind in
    server) alternatives="DNS:$name.gshard,DNS:gshard" usage=serverAuth,clientAuth ;;
    client) alternatives="DNS:$name.gshard" usage=clientAuth ;;
    *) die "expected server:NAME or client:NAME, got '$wanted'" ;;
  esac
  for host in "${names[@]:1}"; do
    if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then
      alternatives+=",IP:$host"
    else
      alternatives+=",DNS:$host"
    fi
  done
  new_key "$folder/$name.key.new"
  # Both are renamed at the end, so that a process that watches them sees whole
  # files.
  # It also says that all is well.
  said=$(openssl req -new -key "$folder/$name.key.new" -sha256 \
    -subj "/O=gshard/CN=$name" |
    openssl x509 -req -CA "$folder/ca.pem" -CAkey "$folder/ca.key" \
      -days "$days" -sha256 -set_serial "0x$(openssl rand -hex 16)" \
      -extfile <(printf '%s\n' "subjectAltName=$alternatives" \
        "extendedKeyUsage=$usage" "keyUsage=critical,digitalSignature" \
        "basicConstraints=critical,CA:FALSE") \
      -out "$folder/$name.pem.new" 2>&1) ||
    die "cannot make a certificate for '$wanted': $said"
  mv "$folder/$name.key.new" "$folder/$name.key"
  mv "$folder/$name.pem.new" "$folder/$name.pem"
done
