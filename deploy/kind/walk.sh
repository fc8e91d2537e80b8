#!/usr/bin/env bash
# The chart on a real cluster, for a person with Docker, kind, kubectl, helm and fedrep installed: from nothing to a federation, and through
# what usually goes wrong. Every step ends the walk if it does not hold. About twenty minutes; deletes its cluster at the end unless KEEP=1.
#
#   deploy/kind/walk.sh            # builds the images from this folder (make web first)
#   IMAGES=registry.example.org/fedrep deploy/kind/walk.sh    # pulls them instead
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
repository="$(dirname "$(dirname "$here")")"
version="$(sed -n 's/^appVersion: "\(.*\)"/\1/p' "$repository/deploy/helm/fedrep/Chart.yaml")"
calico="${CALICO:-https://raw.githubusercontent.com/projectcalico/calico/v3.30.0/manifests/calico.yaml}"
work="$(mktemp -d)"
authority=
export FEDREP_CA_PASSPHRASE="for the walk alone" KUBECONFIG="$work/kubeconfig"

say() { printf '\n== %s\n' "$*"; }
finish() {
  if [ -n "$authority" ]; then kill "$authority" 2>/dev/null || true; fi
  if [ "${KEEP:-0}" != 1 ]; then kind delete cluster --name fedrep; rm -rf "$work"; fi
}
trap finish EXIT
in_fedrep() { kubectl --namespace fedrep "$@"; }
until_true() {
  for _ in $(seq 120); do
    if "$@"; then return; fi
    sleep 1
  done
  echo "did not come true: $*" >&2
  return 1
}
figure() { # pod name, figure: its value
  in_fedrep exec "$1" -- python3 -c "import re, sys, urllib.request
page = urllib.request.urlopen('http://127.0.0.1:8554/metrics', timeout=5).read().decode()
print(re.search(rf'^{sys.argv[1]} (\S+)', page, re.M)[1])" "$2"
}
server_pods() { in_fedrep get pods --selector app.kubernetes.io/component=server --output name; }
leader() {
  local pod
  for pod in $(server_pods); do
    if [ "$(figure "$pod" fedrep_leader)" = 1.0 ]; then echo "$pod"; return; fi
  done
  return 1
}
another_leads() { [ -n "$(leader || true)" ] && [ "$(leader)" != "$1" ]; }
database_missed() { in_fedrep logs "$1" | grep -q waiting_for_database; }

say "a cluster that enforces network policies, and a PostgreSQL"
kind create cluster --name fedrep --config "$here/cluster.yaml"
kubectl apply --filename "$calico"
kubectl wait --for=condition=Ready nodes --all --timeout=5m
kubectl apply --filename "$here/postgres.yaml"
kubectl --namespace database rollout status deployment/postgres --timeout=5m

if [ -z "${IMAGES:-}" ]; then
  say "images of this folder"
  for part in server dashboard; do
    docker build --quiet --file "$repository/deploy/docker/Dockerfile" --target "$part" --tag "fedrep/$part:$version" "$repository"
    kind load docker-image --name fedrep "fedrep/$part:$version"
  done
fi

say "the eight commands"
cd "$work"
HOST=federation.localhost AUTHORITY=localhost DATABASE=postgresql://fedrep:walk@postgres.database.svc:5432/fedrep "$repository/deploy/cluster.sh" \
  hospital-a hospital-b hospital-c hospital-d -- --set server.service.type=ClusterIP ${IMAGES:+--set image.server="$IMAGES/server",image.dashboard="$IMAGES/dashboard"} &
authority=$!
until_true helm --namespace fedrep status fedrep >/dev/null 2>&1

say "two servers, both Ready; kubectl rollout status ends"
in_fedrep rollout status deployment/fedrep-server --timeout=5m
in_fedrep rollout status deployment/fedrep-dashboard --timeout=5m

say "the leader is deleted, and the other leads"
first="$(leader)"
in_fedrep delete "$first" --wait=false
until_true another_leads "$first"

say "the database goes: servers wait and say so; it comes back, and one leads"
kubectl --namespace database scale deployment/postgres --replicas=0
sleep 15
waiting="$(server_pods | head -1)"
until_true database_missed "$waiting"
kubectl --namespace database scale deployment/postgres --replicas=1
until_true leader >/dev/null
in_fedrep rollout status deployment/fedrep-server --timeout=5m

say "a node is drained; the disruption budget lets one server go at a time"
node="$(in_fedrep get "$(leader)" --output jsonpath='{.spec.nodeName}')"
kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout=5m
kubectl uncordon "$node"
in_fedrep rollout status deployment/fedrep-server --timeout=5m

say "a stranger in the cluster reads no metrics and reaches no database port of ours"
pod_ip="$(in_fedrep get "$(leader)" --output jsonpath='{.status.podIP}')"
if kubectl run stranger --rm --stdin --restart=Never --image=busybox:1.36 --command -- wget -q -T 5 -O - "http://$pod_ip:8554/metrics"; then
  echo "a stranger read metrics" >&2
  exit 1
fi

say "an upgrade that changes every pod ends by itself"
helm upgrade fedrep "$repository/deploy/helm/fedrep" --namespace fedrep --reuse-values --set server.podAnnotations.walk=again --wait --timeout 10m

say "asleep and awake"
helm upgrade fedrep "$repository/deploy/helm/fedrep" --namespace fedrep --reuse-values --set server.replicas=0 --wait
helm upgrade fedrep "$repository/deploy/helm/fedrep" --namespace fedrep --reuse-values --set server.replicas=2 --wait --timeout 10m
helm test fedrep --namespace fedrep

say "all of it held"
