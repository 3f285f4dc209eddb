// Measures what `bar.md` asks, side by side with the peers, on one machine in one run. Prints one table, in Markdown.
//   ./dev bench            everything
//   ./dev bench queue      P1–P5   ·  tick  P7  ·  sweep  P6  ·  definitions  P8  ·  job  P11, P13, memory
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, chmodSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { brotliCompressSync } from "node:zlib";
import { definitions } from "./definitions.mjs";

const env = (name) => process.env[`SVCFORGE_BENCH_${name}`];
const wanted = process.argv.slice(2);
const want = (what) => !wanted.length || wanted.includes(what);
const dir = mkdtempSync(join(tmpdir(), "svcforge-bench-"));
chmodSync(dir, 0o711);
const child = spawn(env("BIN"), ["up", "--dir", dir, "--local-bin", env("PLANE"), "--site", env("SITE"), "--catalog-path", resolve("deploy/catalog"), "--port", "0", "--metrics-port", "0"], { stdio: ["ignore", "pipe", "inherit"] });
let said = "";
child.stdout.on("data", (d) => (said += d));
while (!/sign in\s+\S+/.test(said)) await new Promise((r) => setTimeout(r, 50));
const run = JSON.parse(readFileSync(join(dir, "run.json"), "utf8"));
const api = async (path, method = "GET", body) => (await fetch(run.url + path, { method, body: body && JSON.stringify(body), headers: { authorization: `Bearer ${run.api_token}`, "content-type": "application/json" } })).json();
const rss = (pid) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) / 1024;
const at = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];


/// JSON lines of a command, as rows; a peer that fails is said to have.
const rows = [];
const measure = (command, ...args) => {
  const take = (text) => {
    for (const line of text.trim().split("\n").filter(Boolean)) {
      const row = JSON.parse(line);
      rows.push(row);
      console.error(`${row.row} ${row.what}: ${row.value.toFixed(1)} ${row.unit}`);
    }
  };
  try {
    take(execFileSync(command, args, { encoding: "utf8", maxBuffer: 1 << 26, stdio: ["ignore", "pipe", "inherit"] }));
  } catch (error) {
    take(error.stdout ?? "");
    console.error(`${command} ${args[0]}: ${error.message}`);
    rows.push({ row: "–", what: `${command.split("/").pop()} ${args[0]} failed`, value: NaN, unit: "" });
  }
};
const value = (what) => rows.find((r) => r.what.startsWith(what))?.value;
const JOBS = process.env.SVCFORGE_BENCH_JOBS ?? "100000";
if (want("queue")) {
  // Three rounds in turns: one machine's moods fall on all alike. The best of each counts.
  for (let round = 0; round < Number(process.env.SVCFORGE_BENCH_ROUNDS ?? 3); round++) {
    measure(env("ENGINE"), "queue", run.pg_dsn, JOBS);
    measure("node", `${env("PEERS")}/peers.mjs`, run.pg_dsn, JOBS);
    const name = `river_${Date.now()}`;
    execFileSync(process.execPath, ["-e", `const pg=require("${env("PEERS")}/node_modules/pg");(async()=>{const c=new pg.Client({connectionString:${JSON.stringify(run.pg_dsn)}});await c.connect();await c.query("create database ${name}");await c.end()})()`]);
    measure(`${env("PEERS")}/river`, run.pg_dsn.replace(/\/[^/]*$/, `/${name}`), JOBS);
  }
}
if (want("tick")) measure(env("ENGINE"), "tick", run.pg_dsn);
if (want("sweep")) {
  measure(env("ENGINE"), "sweep", run.pg_dsn, run.kubeconfig);
  const times = [];
  for (let n = 0; n < 3; n++) {
    const began = performance.now();
    execFileSync(`${env("PLANE")}/helm`, ["--kubeconfig", run.kubeconfig, "list", "-A", "-o", "json", "--max", "0"], { maxBuffer: 1 << 28, stdio: ["ignore", "ignore", "inherit"] });
    times.push(performance.now() - began);
  }
  rows.push({ row: "P6", what: "helm list -A -o json --max 0, best of 3", value: Math.min(...times), unit: "ms" });
  rows.push({ row: "P6", what: "ratio, cold", value: Math.min(...times) / value("sweep of"), unit: "×" });
}
if (want("definitions")) await definitions({ run, plane: env("PLANE"), dir, rows, many: Number(process.env.SVCFORGE_BENCH_DEFINITIONS ?? 1000), rest: Number(process.env.SVCFORGE_BENCH_REST ?? 300) });
if (rows.length) {
  const better = (a, b) => (a.unit === "ms" ? b.value < a.value : b.value > a.value);
  const best = new Map();
  for (const row of rows) if (!best.has(row.what) || better(best.get(row.what), row)) best.set(row.what, row);
  console.log(`\nmachine: ${cpus().length} × ${cpus()[0].model}, release build, PostgreSQL with fsync as \`up\` runs it\n\n| row | what | value |\n|---|---|---|`);
  for (const r of [...best.values()].sort((a, b) => a.row.localeCompare(b.row))) console.log(`| ${r.row} | ${r.what} | ${r.value.toLocaleString("en", { maximumFractionDigits: r.value < 100 ? 1 : 0 })} ${r.unit} |`);
}
if (want("job")) {
const rest = rss(child.pid);
const N = 60, starts = [], serving = [];
for (let n = 0; n < N; n++) {
  const made = await api("/api/v1/instances", "POST", { team: "demo", type: "cache", name: `bench-${n}` });
  for (;;) {
    const { items: [task] } = await api(`/api/v1/instances/${made.id}/tasks`);
    if (task.state === "succeeded") {
      const helm = task.steps.find((s) => s.name === "Run Helm");
      starts.push(Date.parse(helm.started_at) - Date.parse(task.created_at));
      serving.push(Date.parse(task.finished_at) - Date.parse(task.created_at));
      break;
    }
    await new Promise((r) => setTimeout(r, 100));
  }
}
starts.sort((a, b) => a - b); serving.sort((a, b) => a - b);
const bundle = ["pkg/svcforge_bg.wasm", "pkg/svcforge.js"].reduce((sum, f) => sum + brotliCompressSync(readFileSync(join(env("SITE"), f))).length, 0);
console.log(`
machine: ${cpus().length} × ${cpus()[0].model}; one request at a time, ${N} of them, release build

| what | p50 | p99 | bar |
|---|---|---|---|
| P13 request → Helm started (ms) | ${at(starts, 0.5)} | ${at(starts, 0.99)} | p99 ≤ 50 |
| request → serving, chart \`cache\` (ms) | ${at(serving, 0.5)} | ${at(serving, 0.99)} | – |

| what | value | bar |
|---|---|---|
| P11 browser bundle, brotli (kB) | ${(bundle / 1000).toFixed(0)} | ≤ 300 |
| svcforge's memory at rest, no instances (MiB) | ${rest.toFixed(0)} | P14: ≤ 150 with 1,000 |
| the same after ${N} installs (MiB) | ${rss(child.pid).toFixed(0)} | |
`);
}
await new Promise((done) => { child.on("exit", done); child.kill("SIGTERM"); });
rmSync(dir, { recursive: true, force: true });
