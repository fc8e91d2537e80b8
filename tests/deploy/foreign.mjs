// Objects of operators, as JSON on stdin, judged by validators generated from those operators' own resource definitions.
// Prints one line for each object that is refused. Run in the folder that `make crds` fills.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const PACKAGES = {
  "cert-manager.io": "@kubernetes-models/cert-manager",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
  "gateway.networking.k8s.io": "@kubernetes-models/gateway-api",
};

for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  const [group, version] = object.apiVersion.split("/");
  const file = `${process.cwd()}/node_modules/${PACKAGES[group]}/${group}/${version}/${object.kind}.js`;
  const module = await import(pathToFileURL(file).href);
  const Kind = module[object.kind] ?? module.default[object.kind];
  try {
    new Kind(object).validate();
  } catch (error) {
    console.log(`${object.kind} ${object.metadata.name}: ${error.message}`);
  }
}
