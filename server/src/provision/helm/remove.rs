//! Removal of a chart: done when nothing is left but what `on_delete` keeps.

use super::{argv::uninstall, run::Workdir};
use crate::{
    catalog::OnDelete,
    cluster::{self, release},
    db::{self, observed::ObjectRef},
    provision::{Fault, Job, kubernetes::Kubernetes},
    queue::Attempt,
};
use std::{collections::BTreeSet, time::Duration};

/// Between looks at what is left.
const LOOK: Duration = Duration::from_millis(400);

impl Kubernetes {
    pub(in crate::provision) async fn remove_chart(
        &self,
        job: &Job,
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        attempt.step("Check the release").await?;
        let head = self.own_head(job).await?;
        let recorded = db::observed::parts_of(&attempt.pool, job.instance_id).await?;
        let (claims, mut objects): (Vec<ObjectRef>, Vec<ObjectRef>) = recorded
            .into_iter()
            .partition(|o| o.kind == "PersistentVolumeClaim");
        let mut claims: BTreeSet<ObjectRef> = claims.into_iter().collect();
        if let Some(head) = &head {
            // The newest manifest tells what Helm removes. One that cannot be decoded must not keep a service from being removed.
            match release::content(&self.clients, &job.work.release_namespace, head).await {
                Ok(content) => objects = content.objects,
                Err(Fault::Failed(why)) => attempt.log("svcforge", &why),
                Err(other) => return Err(other),
            }
            // Recorded before their StatefulSet goes: afterwards nothing tells whose they are.
            claims.extend(cluster::claims_of(&self.clients, &objects).await?);
            let all: Vec<ObjectRef> = objects.iter().chain(&claims).cloned().collect();
            self.record_parts(job, &all, attempt).await?;
            attempt.step("Run Helm").await?;
            let dir = Workdir::new(&self.helm.tmp)?;
            self.helm
                .run(&uninstall(job, self.helm.timeout)?, &dir, attempt)
                .await?;
        }
        let claims: Vec<ObjectRef> = claims
            .into_iter()
            .filter(|c| !objects.contains(c))
            .collect();
        let wipe = job.entry.on_delete == OnDelete::Wipe;
        attempt.step("Wait until nothing is left").await?;
        if !wipe && !claims.is_empty() {
            let names: Vec<&str> = claims.iter().map(|c| c.name.as_str()).collect();
            attempt.log("svcforge", &format!("kept: {}", names.join(", ")));
        }
        self.wait_gone(job, &objects, if wipe { &claims } else { &[] }, attempt)
            .await?;
        if wipe {
            cluster::delete_credentials(&self.clients, &self.installation, job).await?;
        }
        Ok(())
    }

    async fn wait_gone(
        &self,
        job: &Job,
        objects: &[ObjectRef],
        claims: &[ObjectRef],
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        let until = tokio::time::Instant::now() + self.helm.timeout;
        let mut said = String::new();
        loop {
            let mut left = cluster::still_there(&self.clients, objects).await?;
            if left.is_empty() {
                // Claims go after the pods that use them.
                left = cluster::delete_claims(&self.clients, claims).await?;
            }
            if let Some(head) = self.own_head(job).await? {
                left.push(format!(
                    "release revision {} ({})",
                    head.revision, head.status
                ));
            }
            if left.is_empty() {
                return Ok(());
            }
            let sentence = format!("still there: {}", left.join(", "));
            if sentence != said {
                attempt.log("svcforge", &sentence);
                said = sentence;
            }
            if tokio::time::Instant::now() > until {
                return Err(Fault::Failed(said));
            }
            tokio::select! {
                stop = attempt.until_stopped() => return Err(Fault::Stopped(stop)),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}
