// The main job in a browser: request, ready, connection, delete; hydrated, and with JavaScript off.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { eventually, hydrated, launch, listen, shots, start } from "./up.mjs";

let up, browser, session;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const kubectl = (...args) => execFileSync(`${process.env.SVCFORGE_E2E_PLANE}/kubectl`, ["--kubeconfig", up.run.kubeconfig, ...args], { encoding: "utf8" });

before(async () => {
  up = await start();
  browser = await launch();
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(up.link);
  await page.screenshot({ path: `${shots}/signin.png` });
  await page.getByRole("button", { name: "Sign in" }).click();
  assert.match(page.url(), /\/services$/);
  session = await context.storageState();
});
after(async () => { await browser?.close(); await up?.stop(); });

const open = async (options = {}) => {
  const context = await browser.newContext({ storageState: session, ...options });
  return { context, page: await context.newPage() };
};

test("people without a session are sent to sign in", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${up.url}/services`);
  assert.match(page.url(), /\/signin$/);
  await context.close();
});

for (const js of [true, false]) {
  const mode = js ? "hydrated" : "without JavaScript";
  test(`request, ready, connection, delete: ${mode}`, async () => {
    const { context, page } = await open({ javaScriptEnabled: js });
    const complaints = [];
    listen(page, complaints);
    const name = js ? "orders" : "plain-orders";
    await page.goto(`${up.url}/catalog`);
    if (js) await hydrated(page);
    await page.getByRole("link", { name: "Request PostgreSQL" }).click();
    if (js) await page.getByLabel("Name").waitFor();
    // What is wrong comes back beside its field, and nothing that was typed is lost.
    await page.getByLabel("Name").evaluate?.((e) => e.removeAttribute("pattern")).catch(() => {});
    await page.getByLabel("Storage").fill("7");
    await page.getByLabel("Name").fill(name);
    await page.getByRole("button", { name: "Request", exact: true }).click();
    await page.waitForURL(/\/services\/[0-9a-f-]{36}$/);
    assert.equal(await page.evaluate(() => document.documentElement.dataset.hydrated ?? "no").catch(() => "no") === "true" || !js || !!(await hydrated(page)), true);
    // Hydrated, the page follows by itself; without, one reloads.
    await eventually(async () => {
      if (!js) await page.reload();
      const text = await page.locator("h1").innerText();
      assert.match(text, /ready/);
    });
    if (js) await hydrated(page); else assert.equal(await page.locator("html").getAttribute("data-hydrated"), null, "no script may have run");
    const body = await page.locator("main").innerText();
    for (const words of ["Serving: its pod is ready", "StatefulSet", "Make the credentials", "Run Helm", "Wait until it serves", "STATUS: deployed", "asked for PostgreSQL 1.0.0"]) assert.ok(body.includes(words), `${words} in:\n${body}`);
    assert.ok(!/password\s+[A-Za-z0-9]{32}/i.test(body), "secrets are masked");
    await page.screenshot({ path: `${shots}/service-${js ? "wide" : "nojs"}.png`, fullPage: true });
    await page.getByRole("button", { name: "Reveal secrets" }).click();
    await page.getByText(/postgres:\/\/app:[A-Za-z0-9]{32}@/).waitFor();
    const release = /(\S+)\.svcf-demo\.svc/.exec(await page.locator("dl.connection").innerText())[1];
    assert.match(kubectl("-n", "svcf-demo", "get", "sts,pvc", "-l", `app.kubernetes.io/instance=${release}`), new RegExp(`${release}\\s+1/1`));
    await page.getByRole("link", { name: "Delete" }).click();
    await page.getByLabel(`Type ${name} to confirm`).fill("wrong");
    await page.getByRole("button", { name: "Delete" }).click();
    await page.getByText(`is not its name; type ${name} to confirm`).waitFor();
    assert.equal(await page.getByLabel(`Type ${name} to confirm`).inputValue(), "wrong");
    await page.getByLabel(`Type ${name} to confirm`).fill(name);
    await page.getByRole("button", { name: "Delete" }).click();
    await eventually(async () => {
      if (!js) await page.reload();
      assert.match(await page.locator("h1").innerText(), /deleted/);
    });
    assert.equal(kubectl("-n", "svcf-demo", "get", "all,pvc,secret", "-o", "name").trim(), "");
    const unexpected = complaints.filter((c) => !/status of 422/.test(c));
    assert.deepEqual(unexpected, []);
    await context.close();
  });
}

test("a form that is not taken comes back with what was typed", async () => {
  const { context, page } = await open({ javaScriptEnabled: false });
  await page.goto(`${up.url}/request/web`);
  // No browser check may stand in for the server's: post what a browser would not.
  const cookie = session.cookies.map((c) => `${c.name}=${c.value}`).join("; ");
  const posted = await fetch(`${up.url}/request/web`, {
    method: "POST", redirect: "manual",
    headers: { cookie, "content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin" },
    body: new URLSearchParams({ team: "demo", name: "Bad<script>", "p.image": "nginx:1", "p.port": "99999", "p.replicas": "0123", "p.env": "A=1\nB", ttl_days: "soon" }),
  });
  const html = await posted.text();
  assert.equal(posted.status, 422);
  assert.ok(html.includes("Bad&lt;script&gt;") && !html.includes("Bad<script>"), "escaped");
  assert.ok(html.includes("must be a whole number of days"));
  const early = await fetch(`${up.url}/request/web`, {
    method: "POST", redirect: "manual",
    headers: { cookie, "content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin" },
    body: new URLSearchParams({ team: "demo", name: "UPPER", "p.image": "nginx:1", "p.port": "99999", "p.env": "A=1\n</textarea><b>out" }),
  });
  const again = await early.text();
  assert.ok(again.includes('value="UPPER"') && again.includes('value="99999"') && again.includes("99999 is greater than the maximum of 65535"), again);
  assert.ok(again.includes("may contain only a-z"));
  assert.ok(again.includes("&lt;/textarea&gt;&lt;b&gt;out") && !again.includes("<b>out"), "nothing leaves its textarea");
  assert.match(again, /must be KEY=value, one a line[^<]*line 2[^<]*has no =/);
  const cross = await fetch(`${up.url}/request/web`, { method: "POST", headers: { cookie, "sec-fetch-site": "cross-site" } });
  assert.equal(cross.status, 403);
  await context.close();
});

test("two posts of one form make one service", async () => {
  const { context, page } = await open();
  await page.goto(`${up.url}/request/cache`);
  await hydrated(page);
  await page.getByLabel("Name").fill("double");
  const button = page.getByRole("button", { name: "Request", exact: true });
  await button.dblclick();
  // The second post aborts the first one's navigation, which `waitForURL` takes for a failure.
  await eventually(async () => assert.match(page.url(), /\/services\/[0-9a-f-]{36}$/));
  const { body } = await up.api("/api/v1/instances?q=double");
  assert.equal(body.items.length, 1);
  await context.close();
});

for (const js of [true, false]) {
  test(`a ServiceDefinition: requested, changed after its diff, drifted, deleted: ${js ? "hydrated" : "without JavaScript"}`, async () => {
    const { context, page } = await open({ javaScriptEnabled: js });
    const complaints = [];
    listen(page, complaints);
    const name = js ? "shop" : "plain-shop";
    await page.goto(`${up.url}/request/web-service`);
    await page.getByLabel("Name").fill(name);
    await page.getByLabel("Image").fill("ghcr.io/shop:1");
    await page.getByRole("button", { name: "Request", exact: true }).click();
    await page.waitForURL(/\/services\/[0-9a-f-]{36}$/);
    const id = page.url().split("/").pop();
    const one = async () => (await up.api(`/api/v1/instances/${id}`)).body;
    await eventually(async () => assert.equal((await one()).state, "ready"));
    await eventually(async () => {
      if (!js) await page.reload();
      assert.match(await page.locator("main").innerText(), /Serving: its pod is ready/);
    });
    const { release } = await one();
    const deployment = () => JSON.parse(kubectl("-n", release.namespace, "get", "deployment", release.name, "-o", "json"));
    assert.equal(deployment().spec.template.spec.containers[0].image, "ghcr.io/shop:1");

    await page.goto(`${up.url}/services/${id}/change`);
    if (js) await hydrated(page);
    assert.equal(await page.getByLabel("Image").inputValue(), "ghcr.io/shop:1");
    await page.getByRole("button", { name: "Show what would change" }).click();
    await page.getByText("Nothing differs from what is set.").waitFor();
    await page.getByLabel("Image").fill("chaos.svcforge.dev/crash-loop");
    await page.getByLabel("Environment").fill("A=1\nB=two words");
    await page.getByRole("button", { name: "Show what would change" }).click();
    await page.getByRole("heading", { name: `What would change in ${name}` }).waitFor();
    const rows = await page.locator("table.diff tbody tr").allInnerTexts();
    assert.deepEqual(rows.map((r) => r.split(/\s+/).join(" ")), ["Image ghcr.io/shop:1 chaos.svcforge.dev/crash-loop", "Environment A nothing 1", "Environment B nothing two words"]);
    await page.screenshot({ path: `${shots}/diff-${js ? "wide" : "nojs"}.png`, fullPage: true });
    assert.equal(deployment().spec.template.spec.containers[0].image, "ghcr.io/shop:1", "nothing before it is confirmed");
    await page.getByRole("button", { name: "Change it" }).click();
    await page.waitForURL(/\/services\/[0-9a-f-]{36}$/);
    // What fails says why, here and in kubectl.
    await eventually(async () => {
      if (!js) await page.reload();
      assert.match(await page.locator("main").innerText(), /container app keeps crashing \(exit code 2, 4 restarts\)/);
    });
    assert.match(kubectl("-n", release.namespace, "get", "svcdef", release.name, "--no-headers"), /false\s+Failed/);
    await page.screenshot({ path: `${shots}/definition-failed-${js ? "wide" : "nojs"}.png`, fullPage: true });
    for (const task of (await up.api(`/api/v1/instances/${id}/tasks`)).body.items.filter((t) => t.state === "running")) await up.api(`/api/v1/tasks/${task.id}/cancel`, { method: "POST" });
    await eventually(async () => assert.notEqual((await one()).state, "upgrading"));
    await page.goto(`${up.url}/services/${id}/change`);
    // What did not succeed is not set: the form shows what was.
    assert.equal(await page.getByLabel("Image").inputValue(), "ghcr.io/shop:1");
    await page.getByLabel("Image").fill("ghcr.io/shop:2");
    // What a parser of HTML would take for something else.
    const env = "\nA=1&copy=2\nB=</textarea> two  words ";
    await page.getByLabel("Environment").fill(env);
    if (js) {
      // Somebody else changes it meanwhile: what is typed stays, and the diff says so.
      const { version } = await one();
      const patched = await up.api(`/api/v1/instances/${id}`, { method: "PATCH", headers: { "if-match": `"${version}"` }, body: JSON.stringify({ maintenance_window: "Sat,Sun 02:00-05:00 Europe/Berlin" }) });
      assert.equal(patched.status, 200, JSON.stringify(patched.body));
      await page.evaluate(() => dispatchEvent(new CustomEvent("svcforge", { detail: "changed reset" })));
      await page.waitForTimeout(1500);
      assert.equal(await page.getByLabel("Environment").inputValue(), env);
      await page.getByText("This page stands still while you type in it.").waitFor();
    }
    await page.getByRole("button", { name: "Show what would change" }).click();
    await page.getByRole("heading", { name: `What would change in ${name}` }).waitFor();
    assert.equal(await page.getByText("was changed after you opened the form").count(), js ? 1 : 0);
    await page.getByRole("button", { name: "Back to the form" }).click();
    assert.equal(await page.getByLabel("Environment").inputValue(), env);
    await page.getByRole("button", { name: "Show what would change" }).click();
    await page.getByRole("button", { name: "Change it" }).click();
    await page.waitForURL(/\/services\/[0-9a-f-]{36}$/);
    await eventually(async () => assert.equal((await one()).state, "ready"));
    assert.deepEqual(deployment().spec.template.spec.containers[0].env, [{ name: "A", value: "1&copy=2" }, { name: "B", value: "</textarea> two  words " }, { name: "PORT", value: "8080" }]);

    // Removed by hand: it comes back. Edited by hand: it is told.
    kubectl("-n", release.namespace, "delete", "svcdef", release.name);
    await eventually(async () => assert.equal(kubectl("-n", release.namespace, "get", "svcdef", release.name, "-o", "jsonpath={.spec.image}"), "ghcr.io/shop:2"), 90_000);
    await eventually(async () => assert.equal((await one()).state, "ready"));
    kubectl("-n", release.namespace, "patch", "svcdef", release.name, "--type=merge", "-p", '{"spec":{"replicas":2}}');
    await eventually(async () => assert.equal((await one()).drift, "changed"), 90_000);
    await up.api(`/api/v1/instances/${id}/drift`, { method: "POST", body: JSON.stringify({ choice: "put_back" }) });
    await eventually(async () => assert.equal(kubectl("-n", release.namespace, "get", "svcdef", release.name, "-o", "jsonpath={.spec.replicas}"), "1"));
    // Its work is over: what is deleted must be as the page shows it.
    await eventually(async () => assert.ok((await up.api(`/api/v1/instances/${id}/tasks`)).body.items.every((t) => t.finished_at)));
    await eventually(async () => assert.equal((await one()).state, "ready"));

    await page.goto(`${up.url}/services/${id}/delete`);
    await page.getByLabel(`Type ${name} to confirm`).fill(name);
    await page.getByRole("button", { name: "Delete" }).click();
    await eventually(async () => assert.equal((await one()).state, "deleted"));
    await eventually(async () => assert.equal(kubectl("-n", release.namespace, "get", "svcdef,deployment,service", "-l", `app.kubernetes.io/name=${release.name}`, "-o", "name").trim(), ""));
    // Without scripts Chromium says of the preloaded module that nobody used it, and is right.
    assert.deepEqual(complaints.filter((c) => !/status of 4(09|22)/.test(c) && (js || !/link preload/.test(c))), []);
    await context.close();
  });
}

test("workflows and foreign definitions are shown as they are, and followed", async () => {
  const { context, page } = await open();
  const namespace = up.run.apps_namespace;
  const apply = (object) => execFileSync(`${process.env.SVCFORGE_E2E_PLANE}/kubectl`, ["--kubeconfig", up.run.kubeconfig, "-n", namespace, "apply", "-f", "-"], { input: JSON.stringify(object) });
  await page.goto(`${up.url}/workflows`);
  await hydrated(page);
  const stage = (name, ...dependsOn) => ({ name, image: name === "c" ? "chaos.svcforge.dev/never-ready" : "ghcr.io/x:1", dependsOn });
  const flow = (c) => ({ apiVersion: "polychrome.dev/v1alpha1", kind: "Workflow", metadata: { name: "flow" }, spec: { stages: [stage("a"), stage("b", "a"), { ...stage("c", "a"), ...c }, stage("d", "b", "c"), stage("e", "d")] } });
  apply(flow({}));
  apply({ apiVersion: "polychrome.dev/v1alpha1", kind: "ServiceDefinition", metadata: { name: "theirs" }, spec: { image: "ghcr.io/theirs:1", owner: "user:slack/U1" } });
  const card = page.locator("section", { has: page.locator("#workflow-flow") });
  await card.getByText("2/5 stages ready").waitFor({ timeout: 30_000 });
  await card.getByRole("cell", { name: "waits for c" }).waitFor();
  assert.equal(await card.locator("svg .stage").count(), 5);
  assert.equal(await card.locator("svg .edge").count(), 5);
  const theirs = page.getByRole("row", { name: /theirs/ });
  await theirs.getByText("user:slack/U1").waitFor();
  await theirs.getByText("read only: made outside of svcforge").waitFor();
  await page.getByText("As the cluster showed it").waitFor();
  assert.equal(await page.locator("main form").count(), 0, "nothing to press");
  await page.screenshot({ path: `${shots}/workflows-live.png`, fullPage: true });
  apply(flow({ image: "ghcr.io/x:2" }));
  await card.getByText("5/5 stages ready").waitFor({ timeout: 30_000 });
  const { body } = await up.api("/api/v1/workflows");
  assert.equal(body.items.find((w) => w.name === "flow").phase, "Ready");
  assert.equal((await up.api("/api/v1/definitions")).body.items.find((d) => d.name === "theirs").instance, null);
  await context.close();
});

const pages = async () => {
  const { body } = await up.api("/api/v1/instances");
  const id = body.items[0].id;
  return { services: "/services", none: "/services?q=zzz", catalog: "/catalog", request: "/request/postgres", web: "/request/web", service: `/services/${id}`, delete: `/services/${id}/delete`, rollouts: "/rollouts", drift: "/drift", workflows: "/workflows", change: `/services/${id}/change`, missing: "/nowhere" };
};

for (const [look, options] of Object.entries({
  wide: { viewport: { width: 1360, height: 900 } },
  dark: { viewport: { width: 1360, height: 900 }, colorScheme: "dark" },
  narrow: { viewport: { width: 360, height: 740 } },
})) {
  test(`every page is clean and accessible: ${look}`, async () => {
    const { context, page } = await open(options);
    const complaints = [];
    listen(page, complaints);
    for (const [name, path] of Object.entries(await pages())) {
      const response = await page.goto(up.url + path);
      assert.equal(response.status(), name === "missing" ? 404 : 200, name);
      assert.match(response.headers()["content-security-policy"], /script-src 'self' 'nonce-/, name);
      await hydrated(page);
      await page.waitForTimeout(200);
      await page.screenshot({ path: `${shots}/${name}-${look}.png`, fullPage: true });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${name} is ${over} px too wide`);
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
      assert.deepEqual(found.violations.map((v) => `${name}: ${v.id}: ${v.nodes.map((n) => n.html).join(" | ")}`), []);
    }
    assert.deepEqual(complaints.filter((c) => !/status of 404/.test(c)), []);
    await context.close();
  });
}

for (const js of [true, false]) {
  test(`halt and resume with a reason: ${js ? "hydrated" : "without JavaScript"}`, async () => {
    const { context, page } = await open({ javaScriptEnabled: js });
    const complaints = [];
    listen(page, complaints);
    await page.goto(`${up.url}/rollouts`);
    if (js) await hydrated(page);
    const card = page.locator("section", { has: page.locator("#rollout-cache") });
    const why = `chart under suspicion ${js}`;
    await card.getByLabel("Why: Halt").fill("  ");
    await card.getByRole("button", { name: "Halt" }).click();
    await page.getByText(/reason is required/).waitFor();
    await page.locator("section", { has: page.locator("#rollout-cache") }).getByLabel("Why: Halt").fill(why);
    await page.locator("section", { has: page.locator("#rollout-cache") }).getByRole("button", { name: "Halt" }).click();
    await page.waitForURL(/\/rollouts$/);
    await page.getByText(`Halted by admin: ${why}`).waitFor();
    assert.equal((await up.api("/api/v1/rollouts/cache")).body.state, "halted");
    await page.screenshot({ path: `${shots}/rollouts-halted-${js ? "wide" : "nojs"}.png`, fullPage: true });
    if (js) {
      // What somebody else does shows without a reload; everything's halt shows on every page.
      await hydrated(page);
      await up.api("/api/v1/rollouts/halt", { method: "POST", body: JSON.stringify({ reason: "storm" }) });
      await page.getByText("Everything is halted by admin: storm").waitFor();
      await page.goto(`${up.url}/services`);
      await page.getByText("All rollouts are halted by admin: storm").waitFor();
      await up.api("/api/v1/rollouts/resume", { method: "POST", body: JSON.stringify({ reason: "over" }) });
      await page.goto(`${up.url}/rollouts`);
    }
    await page.locator("section", { has: page.locator("#rollout-cache") }).getByLabel("Why: Resume").fill("mended");
    await page.locator("section", { has: page.locator("#rollout-cache") }).getByRole("button", { name: "Resume" }).click();
    await page.getByText("Resumed by admin: mended").waitFor();
    assert.equal((await up.api("/api/v1/rollouts/cache")).body.state, "active");
    assert.deepEqual(complaints.filter((c) => !/status of 422/.test(c)), []);
    await context.close();
  });
}

test("a release that somebody uninstalls comes back, and the page says so without a reload", async () => {
  const { context, page } = await open();
  const { body: made } = await up.api("/api/v1/instances", { method: "POST", body: JSON.stringify({ team: "demo", type: "cache", name: "uninstalled" }) });
  await eventually(async () => assert.equal((await up.api(`/api/v1/instances/${made.id}`)).body.state, "ready"), 60_000);
  await page.goto(`${up.url}/services/${made.id}`);
  await hydrated(page);
  await page.getByText("at any time").waitFor();
  execFileSync(`${process.env.SVCFORGE_E2E_PLANE}/helm`, ["--kubeconfig", up.run.kubeconfig, "uninstall", made.release.name, "-n", made.release.namespace]);
  await page.getByText(/Provisioned again, drift: release .* is gone/).waitFor({ timeout: 20_000 });
  await eventually(async () => assert.match(await page.locator("h1").innerText(), /ready/), 60_000);
  await context.close();
});

test("kill -9 in the middle of an install: the page says that it is old; the next up ends it; nothing was left running", async () => {
  const { context, page } = await open();
  const made = await Promise.all([1, 2, 3].map((n) => up.api("/api/v1/instances", { method: "POST", body: JSON.stringify({ team: "demo", type: "cache", name: `crash-${n}` }) })));
  await page.goto(`${up.url}/services/${made[0].body.id}`);
  await hydrated(page);
  await up.api("/api/v1/instances", { method: "POST", body: JSON.stringify({ team: "demo", type: "postgres", name: "crash-db" }) });
  up.child.kill("SIGKILL");
  await eventually(async () => assert.match(await page.locator(".stale").innerText(), /Reconnecting; last update/), 5_000);
  const old = up;
  up = await start({ port: new URL(up.url).port });
  for (const pid of Object.values(old.run.pids)) assert.throws(() => process.kill(pid, 0), `pid ${pid} of the killed run lives`);
  // A lost lease is taken over after half the standard's 75 s at the soonest.
  const { body: all } = await up.api("/api/v1/instances?q=crash");
  assert.equal(all.items.length, 4);
  for (const { id } of all.items) {
    await eventually(async () => assert.equal((await up.api(`/api/v1/instances/${id}`)).body.state, "ready"), 120_000);
    const { body: one } = await up.api(`/api/v1/instances/${id}`);
    const deployed = kubectl("-n", one.release.namespace, "get", "secret", "-l", `owner=helm,name=${one.release.name},status=deployed`, "-o", "name");
    assert.equal(deployed.trim().split("\n").length, 1);
  }
  // The same page, never reloaded, has caught up.
  await eventually(async () => {
    assert.equal(await page.locator(".stale").innerText(), "");
    assert.match(await page.locator("h1").innerText(), /ready/);
  });
  await context.close();
});
