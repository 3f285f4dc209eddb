// graphile-worker and pg-boss, tuned as they advise; the same Postgres, a database each. Prints JSON lines.
import { run, makeWorkerUtils } from "graphile-worker";
import PgBoss from "pg-boss";
import pg from "pg";

const [admin, jobs] = [process.argv[2], Number(process.argv[3])];
const result = (row, what, value, unit) => console.log(JSON.stringify({ row, what, value, unit }));
const silent = { logger: undefined };
const at = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
async function fresh(name) {
  const client = new pg.Client({ connectionString: admin });
  await client.connect();
  const db = `${name}_${Date.now()}`;
  await client.query(`create database ${db}`);
  await client.end();
  return admin.replace(/\/[^/]*$/, `/${db}`);
}
const quiet = { logger: new (await import("graphile-worker")).Logger(() => () => {}) };

async function graphile(row, what, count, worker) {
  const connectionString = await fresh("graphile");
  const utils = await makeWorkerUtils({ connectionString, ...quiet });
  await utils.migrate();
  const client = new pg.Client({ connectionString });
  await client.connect();
  await client.query("select graphile_worker.add_jobs(array(select row('noop', '{}'::json, null, null, null, null, null, null)::graphile_worker.job_spec from generate_series(1, $1)))", [count]);
  await client.query("vacuum analyze graphile_worker._private_jobs");
  let done = 0, finish;
  const finished = new Promise((r) => (finish = r));
  const began = process.hrtime.bigint();
  const runner = await run({ preset: { worker: { connectionString, maxPoolSize: 12, ...worker } }, ...quiet, noHandleSignals: true, parsedCronItems: [], taskList: { noop: () => { if (++done === count) finish(); } } });
  await finished;
  const seconds = Number(process.hrtime.bigint() - began) / 1e9;
  result(row, what, count / seconds, "jobs/s");
  await runner.stop();
  await client.end();
  await utils.release();
}

async function latency() {
  const connectionString = await fresh("graphile");
  const utils = await makeWorkerUtils({ connectionString, ...quiet });
  await utils.migrate();
  let started;
  const runner = await run({ preset: { worker: { connectionString, concurrentJobs: 4 } }, ...quiet, noHandleSignals: true, parsedCronItems: [], taskList: { noop: () => started(process.hrtime.bigint()) } });
  await new Promise((r) => setTimeout(r, 500));
  const times = [];
  for (let n = 0; n < 500; n++) {
    const come = new Promise((r) => (started = r));
    const began = process.hrtime.bigint();
    await utils.addJob("noop", {});
    times.push(Number((await come) - began) / 1e6);
    await new Promise((r) => setTimeout(r, 10));
  }
  times.sort((a, b) => a - b);
  result("P3", "graphile-worker, enqueue → started, p50", at(times, 0.5), "ms");
  result("P3", "graphile-worker, enqueue → started, p99", at(times, 0.99), "ms");
  await runner.stop();
  await utils.release();
}

async function boss(count) {
  const boss = new PgBoss({ connectionString: await fresh("boss"), max: 12 });
  boss.on("error", () => {});
  await boss.start();
  await boss.createQueue("noop");
  for (let left = count; left > 0; left -= 1000) await boss.insert(Array.from({ length: Math.min(left, 1000) }, () => ({ name: "noop" })));
  const began = process.hrtime.bigint();
  let done = 0;
  await Promise.all(Array.from({ length: 4 }, async () => {
    for (;;) {
      const batch = await boss.fetch("noop", { batchSize: 50 });
      if (!batch.length) return;
      await boss.complete("noop", batch.map((j) => j.id));
      done += batch.length;
    }
  }));
  result("P1", "pg-boss, batches of 50", done / (Number(process.hrtime.bigint() - began) / 1e9), "jobs/s");
  await boss.stop({ graceful: false });
}

await graphile("P1", "graphile-worker, tuned (deletes, does not fence)", jobs, { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 });
await graphile("P2", "graphile-worker, its defaults, 10 at once", jobs / 10, { concurrentJobs: 10 });
await latency();
await boss(jobs / 10);
process.exit(0);
