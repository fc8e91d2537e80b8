#!/usr/bin/env bash
# From nothing to a federation on a cluster, in eight commands; docs/operations.md explains them. In an empty folder:
#
#   HOST=federation.example.org AUTHORITY=ca.example.org DATABASE=postgresql://fedrep:PASSWORD@HOST:5432/fedrep deploy/cluster.sh hospital-a hospital-b hospital-c hospital-d
#
# HOST is the name that silos dial, which leads to the cluster's load balancer. AUTHORITY is that of this machine, where they enrol: it
# asks for the passphrase of the certificate authority (or takes FEDREP_CA_PASSPHRASE), which then runs here until Ctrl-C.
# CHART, FEDERATION and NAMESPACE may be set too; what stands after -- goes to helm install.
set -euo pipefail

: "${HOST:?the name that silos dial}" "${AUTHORITY:?the name of this machine, where silos enrol}" "${DATABASE:?the URL of a PostgreSQL that the cluster reaches}"
federation="${FEDERATION:-federation}" namespace="${NAMESPACE:-fedrep}" chart="${CHART:-$(dirname "$0")/helm/fedrep}"
silos=() more=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do silos+=(--silo "$1"); shift; done
[ $# -eq 0 ] || { shift; more=("$@"); }
files() { printf -- '--from-file=%s\n' "$1"/{key.pem,cert.pem,root.pem,crl.pem}; }
mapfile -t server < <(files server/identity)
mapfile -t dashboard < <(files dashboard)

fedrep init "$federation" --host "$AUTHORITY" --server-host "$HOST" --cluster "${silos[@]}"
kubectl create namespace "$namespace"
kubectl --namespace "$namespace" create secret generic fedrep-server-identity "${server[@]}"
kubectl --namespace "$namespace" create secret generic fedrep-dashboard-identity "${dashboard[@]}"
kubectl --namespace "$namespace" create secret generic fedrep-database --from-literal=url="$DATABASE"
helm install fedrep "$chart" --namespace "$namespace" --wait --timeout 10m \
  --set server.replicas=2,server.database.kind=postgresql,server.database.existingSecret=fedrep-database \
  --set server.identity.existingSecret=fedrep-server-identity,server.identity.serverName="$HOST" \
  --set server.revocations.authority="$AUTHORITY:8552" \
  --set server.service.type=LoadBalancer,dashboard.identity.existingSecret=fedrep-dashboard-identity ${more[@]+"${more[@]}"}
helm test fedrep --namespace "$namespace"
fedrep ca serve --folder ca
