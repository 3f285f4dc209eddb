// P8: 1,000 ServiceDefinitions created until all are ready, beside `kubectl apply` of the same Deployments and Services until all are
// available; then five minutes at rest. `up`'s own controller does the work.
import { execFileSync, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";

const pause = (ms) => new Promise((r) => setTimeout(r, ms));

export async function definitions({ run, plane, dir, rows, many = 1000, rest = 300 }) {
  const kubectl = (...args) => execFileSync(`${plane}/kubectl`, ["--kubeconfig", run.kubeconfig, ...args], { encoding: "utf8", maxBuffer: 1 << 28 });
  const list = (namespace, kind) => JSON.parse(kubectl("-n", namespace, "get", kind, "-o", "json")).items;
  const file = (name, items) => { const path = join(dir, name); writeFileSync(path, JSON.stringify({ apiVersion: "v1", kind: "List", items })); return path; };
  const apply = (namespace, path) => execFileSync(`${plane}/kubectl`, ["--kubeconfig", run.kubeconfig, "-n", namespace, "apply", "--server-side", "-f", path], { stdio: ["ignore", "ignore", "inherit"] });
  const until = async (what, holds) => { for (const end = Date.now() + 900_000; !holds(); await pause(500)) if (Date.now() > end) throw new Error(`${what}: not within 15 minutes`); };
  const names = Array.from({ length: many }, (_, n) => `bench-${String(n).padStart(4, "0")}`);
  const definition = (name) => ({ apiVersion: "polychrome.dev/v1alpha1", kind: "ServiceDefinition", metadata: { name }, spec: { image: "ghcr.io/x:1" } });
  // All of it: what is still being deleted would be the next one's load.
  const gone = async (namespace) => until("gone", () => list(namespace, "pods,replicasets,deployments,services,endpointslices").length === 0);

  // The peer's objects are what the controller makes of one definition.
  const ours = run.apps_namespace;
  apply(ours, file("one.json", [definition("bench-model")]));
  await until("the model is ready", () => list(ours, "svcdef").every((d) => d.status?.ready));
  const model = (kind) => {
    const object = JSON.parse(kubectl("-n", ours, "get", kind, "bench-model", "-o", "json"));
    for (const own of ["uid", "resourceVersion", "creationTimestamp", "generation", "ownerReferences", "namespace", "annotations", "managedFields"]) delete object.metadata[own];
    for (const own of ["clusterIP", "clusterIPs"]) delete object.spec[own];
    delete object.status;
    return JSON.stringify(object);
  };
  const models = [model("deployment"), model("service")];
  kubectl("-n", ours, "delete", "svcdef", "bench-model");
  await gone(ours);

  const peers = [], own = [];
  for (let round = 0; round < 2; round++) {
    kubectl("create", "namespace", `bench-peer-${round}`);
    const path = file("peer.json", names.flatMap((name) => models.map((m) => JSON.parse(m.replaceAll("bench-model", name)))));
    let began = performance.now();
    apply(`bench-peer-${round}`, path);
    await until("the peer's are available", () => list(`bench-peer-${round}`, "deployments").filter((d) => d.status?.availableReplicas === 1).length === many);
    peers.push(performance.now() - began);
    console.error(`P8 kubectl apply, round ${round}: ${peers.at(-1).toFixed(0)} ms`);
    kubectl("delete", "namespace", `bench-peer-${round}`, "--wait=false");
    await gone(`bench-peer-${round}`);
    await pause(10_000);
    const definitions = file("definitions.json", names.map(definition));
    began = performance.now();
    apply(ours, definitions);
    await until("ours are ready", () => list(ours, "svcdef").filter((d) => d.status?.ready).length === many);
    own.push(performance.now() - began);
    console.error(`P8 svcforge, round ${round}: ${own.at(-1).toFixed(0)} ms`);
    if (round === 0) { kubectl("-n", ours, "delete", "svcdef", "--all", "--wait=false"); await gone(ours); await pause(10_000); }
  }
  rows.push({ row: "P8", what: `${many} ServiceDefinitions, created → ready`, value: Math.min(...own), unit: "ms" });
  rows.push({ row: "P8", what: "kubectl apply of the same Deployments and Services → available", value: Math.min(...peers), unit: "ms" });
  rows.push({ row: "P8", what: "P8 ratio (bar: ≤ 1.25)", value: Math.min(...own) / Math.min(...peers), unit: "× longer" });

  await pause(20_000);
  const versions = () => ["svcdef", "deployments", "services"].flatMap((kind) => list(ours, kind).map((o) => `${kind}/${o.metadata.name}=${o.metadata.resourceVersion}`));
  const writes = async () => Number(/^svcforge_controller_status_writes_total(?:\{[^}]*\})? (\S+)/m.exec(await (await fetch(run.metrics_url)).text())?.[1] ?? 0);
  const [before, written] = [new Set(versions()), await writes()];
  await pause(rest * 1000);
  rows.push({ row: "P8", what: `resourceVersions that moved in ${rest} s at rest, of ${before.size}`, value: versions().filter((v) => !before.has(v)).length, unit: "" });
  rows.push({ row: "P8", what: `status patches in ${rest} s at rest`, value: (await writes()) - written, unit: "" });
  spawnSync(`${plane}/kubectl`, ["--kubeconfig", run.kubeconfig, "-n", ours, "delete", "svcdef", "--all", "--wait=false"]);
}
