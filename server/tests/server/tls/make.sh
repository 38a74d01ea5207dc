#!/usr/bin/env bash
# Makes the certificate and keys of the tests, which protect nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -keyout key.pem -out cert.pem \
  -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out other-key.pem
openssl req -x509 -key other-key.pem -days 36500 -out other-cert.pem \
  -subj /CN=other.test -addext subjectAltName=DNS:other.test -addext basicConstraints=critical,CA:FALSE
