// Starts svcforge as a newcomer would, and a browser beside it.
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { chromium } from "playwright-core";

export const env = (name) => process.env[`SVCFORGE_E2E_${name}`] ?? (() => { throw new Error(`SVCFORGE_E2E_${name} is not set: run ./dev test`); })();
export const shots = env("SHOTS");
mkdirSync(shots, { recursive: true });
const chromiumPath = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);

export async function start({ port = "0", dir = env("DIR"), catalog = env("CATALOG"), more = [] } = {}) {
  mkdirSync(dir, { recursive: true });
  // Shorter than the standard: a test waits until a lost lease is taken over.
  const worker = { SVCFORGE_LEASE_SECONDS: "30", SVCFORGE_HELM_TIMEOUT_S: "29" };
  const child = spawn(env("BIN"), ["up", "--dir", dir, "--local-bin", env("PLANE"), "--site", env("SITE"), "--catalog-path", catalog, "--port", port, "--metrics-port", "0", ...more], { env: { ...process.env, ...worker }, stdio: ["ignore", "pipe", "inherit"] });
  let said = "";
  child.stdout.on("data", (d) => (said += d));
  const until = Date.now() + 90_000;
  while (!/sign in\s+\S+/.test(said)) {
    if (child.exitCode !== null || Date.now() > until) throw new Error(`svcforge up did not start:\n${said}`);
    await new Promise((r) => setTimeout(r, 50));
  }
  const link = /sign in\s+(\S+)/.exec(said)[1];
  const run = JSON.parse(readFileSync(`${dir}/run.json`, "utf8"));
  return {
    link, run, url: run.url, pid: child.pid, child,
    api: async (path, init = {}) => {
      const r = await fetch(run.url + path, { ...init, headers: { authorization: `Bearer ${run.api_token}`, "content-type": "application/json", ...init.headers } });
      return { status: r.status, body: await r.json() };
    },
    stop: () => new Promise((done) => { child.on("exit", done); child.kill("SIGTERM"); }),
  };
}

export const launch = () =>
  chromium.launch({ executablePath: chromiumPath, args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"] });

/// Waits until a check holds; tells the last failure.
export async function eventually(check, ms = 60_000) {
  const until = Date.now() + ms;
  for (;;) {
    try { return await check(); } catch (error) { if (Date.now() > until) throw error; }
    await new Promise((r) => setTimeout(r, 100));
  }
}

/// Fails on anything the console or the page complains of.
export function listen(page, complaints) {
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && complaints.push(`${page.url()}: ${m.text()}`));
  page.on("pageerror", (e) => complaints.push(`${page.url()}: ${e.message}`));
}

export const hydrated = (page) => page.waitForFunction(() => document.documentElement.dataset.hydrated === "true");
