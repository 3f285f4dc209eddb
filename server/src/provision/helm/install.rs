//! Install, repair and upgrade of a chart, step by step.

use super::{
    Workdir,
    argv::{Marks, upgrade},
};
use crate::{
    catalog::compose,
    cluster::{self, Stores, release},
    db::{self, observed::ObjectRef},
    provision::{Fault, Job, kubernetes::Kubernetes},
    queue::{Attempt, Stop},
};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use svcforge_app::domain::Verdict;

impl Kubernetes {
    /// "Succeeded" means: release deployed ∧ chart version is the target ∧ every workload complete.
    pub(in crate::provision) async fn install_chart(
        &self,
        job: &Job,
        attempt: &Attempt,
    ) -> Result<Vec<ObjectRef>, Fault> {
        let namespace = &job.work.release_namespace;
        attempt.step("Prepare the namespace").await?;
        cluster::ensure_namespace(&self.clients, &self.installation, &job.work.team, namespace)
            .await?;
        if attempt.task.payload["adopt"] == true {
            attempt.step("Adopt the release").await?;
            let (name, instance) = (&job.work.release_name, job.instance_id.to_string());
            let revision = release::adopt(
                &self.clients,
                namespace,
                name,
                &self.installation,
                &instance,
                true,
            )
            .await?;
            attempt.log(
                "svcforge",
                &format!("revision {revision} of {name} is this service's now"),
            );
            cluster::adopt_credentials(&self.clients, &self.installation, job).await?;
        }
        let head = self.own_head(job).await?;
        if !job.entry.credentials.is_empty() {
            attempt.step("Make the credentials").await?;
            cluster::ensure_credentials(&self.clients, &self.installation, job).await?;
        }
        // Asked again only where something was moved: a consistent LIST so soon after another waits for the API server's cache, up
        // to 100 ms (`progressRequestPeriod`).
        let head = match head {
            Some(head) if self.recover(job, &head, attempt).await? => self.own_head(job).await?,
            head => head,
        };
        let next = head.map_or(1, |h| h.revision + 1);
        self.run_upgrade(job, next, attempt).await?;
        let parts = self.verify(job).await?;
        self.record_parts(job, &parts, attempt).await?;
        attempt.step("Wait until it serves").await?;
        self.wait_ready(job, &parts, attempt).await?;
        let claims = cluster::claims_of(&self.clients, &parts).await?;
        Ok(parts.into_iter().chain(claims).collect())
    }

    async fn run_upgrade(&self, job: &Job, next: i32, attempt: &Attempt) -> Result<(), Fault> {
        attempt.step("Run Helm").await?;
        let dir = Workdir::new(&self.helm.tmp)?;
        let chart = job
            .chart
            .as_deref()
            .ok_or_else(|| Fault::Rejected("its entry revision has no chart".into()))?;
        let chart = dir.write("chart.tgz", chart)?;
        let values = compose(
            &job.entry,
            &job.parameters,
            &format!("{}-credentials", job.work.release_name),
        );
        let values = serde_json::to_vec(&values).map_err(|e| Fault::Rejected(e.to_string()))?;
        let digest = HEXLOWER.encode(&Sha256::digest(&values)[..16]);
        let values = dir.write("values.json", &values)?;
        let marks = Marks {
            installation: &self.installation,
            values: &digest,
            token: attempt.task.token,
        };
        let argv = upgrade(job, &marks, &chart, &values, self.helm.timeout)?;
        // Recorded before Helm starts: what lets the next attempt tell this one's leavings from a person's work.
        if !db::instance::record_revision(
            &attempt.pool,
            job.instance_id,
            (next, None),
            attempt.task.id,
            attempt.task.token,
        )
        .await?
        {
            return Err(Fault::Stopped(Stop::LeaseLost));
        }
        self.helm.run(&argv, &dir, attempt).await
    }

    /// What Helm's exit code claims is looked up.
    async fn verify(&self, job: &Job) -> Result<Vec<ObjectRef>, Fault> {
        let head = self
            .own_head(job)
            .await?
            .ok_or_else(|| Fault::Failed("Helm says it is done, but there is no release".into()))?;
        if head.status != "deployed" {
            return Err(Fault::Failed(format!(
                "Helm says it is done, but revision {} is {}",
                head.revision, head.status
            )));
        }
        let content = release::content(&self.clients, &job.work.release_namespace, &head).await?;
        if content.chart_version != job.entry.chart_version {
            return Err(Fault::Failed(format!(
                "the release runs chart {}, not {}",
                content.chart_version, job.entry.chart_version
            )));
        }
        Ok(content.objects)
    }

    /// Tells the observer what to look for while this attempt still waits.
    pub(in crate::provision) async fn record_parts(
        &self,
        job: &Job,
        parts: &[ObjectRef],
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        let mut tx = attempt.pool.begin().await?;
        if !db::queue::hold(&mut tx, attempt.task.id, attempt.task.token).await? {
            return Err(Fault::Stopped(Stop::LeaseLost));
        }
        db::observed::set_parts(&mut tx, job.instance_id, parts).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Watches this release until every part of it is complete.
    async fn wait_ready(
        &self,
        job: &Job,
        parts: &[ObjectRef],
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        let (stores, mut changed) = Stores::start(&self.clients, Some(&job.work.release_namespace));
        let until = tokio::time::Instant::now() + self.helm.timeout;
        let mut said = String::new();
        tokio::select! {
            stop = attempt.until_stopped() => return Err(Fault::Stopped(stop)),
            () = stores.ready() => {}
            () = tokio::time::sleep_until(until) => {
                return Err(Fault::Outage { what: "the Kubernetes API".into(), error: "the watches of its release did not begin".into() });
            }
        }
        loop {
            let seen = stores.readiness(parts);
            if seen.sentence != said {
                attempt.log("svcforge", &seen.sentence);
                attempt.seen(&seen).await?;
                said = seen.sentence.clone();
            }
            // A chart without workloads has nothing to wait for.
            if seen.parts.is_empty()
                || matches!(seen.verdict, Verdict::Complete | Verdict::ScaledToZero)
            {
                return Ok(());
            }
            tokio::select! {
                stop = attempt.until_stopped() => return Err(Fault::Stopped(stop)),
                _ = changed.recv() => while changed.try_recv().is_ok() {},
                () = tokio::time::sleep_until(until) => {
                    return Err(Fault::Failed(format!("not serving after {} s: {said}", self.helm.timeout.as_secs())));
                }
            }
        }
    }
}
