// Measures what `bar.md` asks of the main job: request → Helm started (P13), memory at rest (P14, without its 1,000 instances),
// the browser bundle (P11). Prints one table.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, chmodSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { brotliCompressSync } from "node:zlib";

const env = (name) => process.env[`SVCFORGE_BENCH_${name}`];
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
await new Promise((done) => { child.on("exit", done); child.kill("SIGTERM"); });
rmSync(dir, { recursive: true, force: true });
