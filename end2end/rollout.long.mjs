// A fleet's day 2 as a person lives it: `up` without a reconciler, `svcforge reconcile --once` from a shell, real Helm, a real cluster.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { env, eventually, launch, shots, start } from "./up.mjs";

const TEAMS = ["platform", "alpha", "beta"], MANY = 20, CAP = 2;
let up, browser, page, catalog;

before(async () => {
  catalog = mkdtempSync(join(tmpdir(), "svcforge-catalog-"));
  cpSync(env("CATALOG"), catalog, { recursive: true });
  edit("1.0.0");
  up = await start({ dir: `${env("DIR")}-rollout`, catalog, more: ["--roles", "web,worker,controller"] });
  browser = await launch();
  page = await browser.newPage();
  await page.goto(up.link);
  await page.getByRole("button", { name: "Sign in" }).click();
});
after(async () => { await browser?.close(); await up?.stop(); rmSync(catalog, { recursive: true, force: true }); });

// The catalog's cache: that version, two at once; a broken one fails every upgrade.
function edit(version, broken = false) {
  const template = join(catalog, "cache/chart/templates/broken.yaml");
  if (broken) writeFileSync(template, '{{ if .Release.IsUpgrade }}{{ fail "this chart is broken" }}{{ end }}\n');
  else rmSync(template, { force: true });
  const [chart, entry] = [join(catalog, "cache/chart/Chart.yaml"), join(catalog, "cache/entry.yaml")];
  writeFileSync(chart, readFileSync(chart, "utf8").replace(/^version: .*/m, `version: ${version}`));
  const text = readFileSync(entry, "utf8").replace(/^chart_version: .*/m, `chart_version: ${version}`);
  writeFileSync(entry, text.replace(/^max_in_flight: .*\n/m, "") + `max_in_flight: ${CAP}\n`);
}
// One tick from a shell; its log's lines.
const tick = () => new Promise((done, failed) =>
  execFile(env("BIN"), ["reconcile", "--once", "--kubeconfig", up.run.kubeconfig, "--catalog-path", catalog], { env: { PATH: "/usr/bin:/bin", SVCFORGE_PG_DSN: up.run.pg_dsn } }, (error, out) =>
    error ? failed(new Error(`${error.message}\n${out}`)) : done(out.trim().split("\n").map((l) => JSON.parse(l)))));
const fleet = async () => (await up.api("/api/v1/instances?limit=100")).body.items;
const rollout = async () => (await up.api("/api/v1/rollouts/cache")).body;
// Upgrades that ended or run, with when and for whom.
const upgrades = async () => (await Promise.all((await fleet()).map(async (i) =>
  (await up.api(`/api/v1/instances/${i.id}/tasks`)).body.items.filter((t) => t.kind === "upgrade" && t.started_at).map((t) => ({ ...t, team: i.team }))))).flat();
// Ticks until it holds; looks in between that no more than the cap are under way.
async function ticked(what, holds, ms = 300_000) {
  for (const until = Date.now() + ms; ; ) {
    const logs = await tick();
    assert.ok(logs.some((l) => l.event === "tick.done") && !logs.some((l) => l.event === "check.failed"), JSON.stringify(logs));
    const now = await fleet();
    assert.ok(now.filter((i) => i.state === "upgrading").length <= CAP, "never three at once");
    if (await holds(now)) return now;
    assert.ok(Date.now() < until, `${what}: ${JSON.stringify(await rollout())}`);
  }
}

test("twenty services of three teams move two at once, their own team first; a window is kept", async () => {
  for (const slug of TEAMS) await up.api("/api/v1/teams", { method: "POST", body: JSON.stringify({ slug, title: slug }) });
  for (let n = 0; n < MANY; n++) {
    const hour = new Date().getUTCHours() + 3;
    const closed = n === 1 ? { maintenance_window: `daily ${String(hour % 24).padStart(2, "0")}:00-${String((hour + 1) % 24).padStart(2, "0")}:00` } : {};
    const { status, body } = await up.api("/api/v1/instances", { method: "POST", body: JSON.stringify({ team: TEAMS[n % 3], type: "cache", name: `s${n}`, parameters: { memory_mb: 64 }, ...closed }) });
    assert.equal(status, 201, JSON.stringify(body));
  }
  await eventually(async () => assert.ok((await fleet()).every((i) => i.state === "ready")), 180_000);
  await tick();
  assert.deepEqual(await upgrades(), [], "nothing to do yet");
  edit("1.1.0");
  const now = await ticked("1.1.0", (all) => all.filter((i) => i.chart_version === "1.1.0" && i.state === "ready").length === MANY - 1);
  const left = now.find((i) => i.chart_version === "1.0.0");
  assert.equal(left.name, "s1");
  assert.match((await rollout()).waiting.find((w) => w.instance === left.id).why, /window opens/);
  const done = (await upgrades()).sort((a, b) => (a.started_at < b.started_at ? -1 : 1));
  assert.equal(done.length, MANY - 1, "one each");
  assert.ok(done.slice(0, 7).every((t) => t.team === "platform"), "the own team's first");
  for (const t of done) assert.ok(done.filter((o) => o.started_at <= t.started_at && o.finished_at > t.started_at).length <= CAP, "never three at once");
});

test("a broken chart stops after one tenant, says so on screen, and goes on with a good one", async () => {
  edit("1.2.0", true);
  await ticked("halted", async () => (await rollout()).state === "halted", 60_000);
  // What had started comes to its end; nothing follows.
  await eventually(async () => assert.equal((await rollout()).in_flight, 0), 200_000);
  for (let n = 0; n < 3; n++) assert.ok(!(await tick()).some((l) => l.event === "upgrade.scheduled"));
  const broken = (await fleet()).filter((i) => i.state === "failed");
  assert.ok(broken.length >= 1 && broken.length <= CAP && broken.every((i) => i.team === "platform"), JSON.stringify(broken));
  assert.equal((await fleet()).filter((i) => i.state === "ready").length, MANY - broken.length);
  const { reason } = await rollout();
  await page.goto(`${up.url}/rollouts`);
  await page.getByText(reason).first().waitFor();
  await page.screenshot({ path: `${shots}/rollout-broken.png`, fullPage: true });
  edit("1.3.0");
  await tick();
  assert.equal((await rollout()).state, "halted", "a new version alone resumes nothing");
  const { status } = await up.api("/api/v1/rollouts/cache/resume", { method: "POST", body: JSON.stringify({ reason: "1.3.0 is good" }) });
  assert.equal(status, 200);
  // What failed is a person's to retry.
  for (const i of broken) assert.equal((await up.api(`/api/v1/instances/${i.id}/retry`, { method: "POST" })).status, 202);
  await ticked("1.3.0", (all) => all.filter((i) => i.chart_version === "1.3.0" && i.state === "ready").length === MANY - 1);
});
