//! Removal of a chart: done when nothing is left but what `on_delete` keeps.

use super::{Workdir, argv::uninstall};
use crate::{
    catalog::OnDelete,
    cluster::{self, release},
    db::{self, leftover::Kept, observed::ObjectRef},
    provision::{Fault, Job, kubernetes::Kubernetes},
    queue::{Attempt, Stop},
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
        // What an attempt before this one found to be kept: its manifest may be gone.
        let mut kept = db::leftover::list_of(&attempt.pool, job.instance_id).await?;
        if let Some(head) = &head {
            // The newest manifest tells what Helm removes. One that cannot be decoded must not keep a service from being removed.
            match release::content(&self.clients, &job.work.release_namespace, head).await {
                Ok(content) => {
                    objects = content.objects;
                    kept.extend(content.kept);
                }
                Err(Fault::Failed(why)) => attempt.log("svcforge", &why),
                Err(other) => return Err(other),
            }
            // Recorded before their StatefulSet goes: afterwards nothing tells whose they are.
            claims.extend(cluster::claims_of(&self.clients, &objects).await?);
            claims.retain(|c| !kept.contains(c));
            let all: Vec<ObjectRef> = objects.iter().chain(&claims).cloned().collect();
            self.record_parts(job, &all, attempt).await?;
        }
        let mut claims: Vec<ObjectRef> = claims
            .into_iter()
            .filter(|c| !objects.contains(c) && !kept.contains(c))
            .collect();
        self.keep(job, kept, None, attempt).await?;
        let mut days = None;
        if let OnDelete::KeepDays(keep) = job.entry.on_delete {
            days = Some(keep);
            let mut own = std::mem::take(&mut claims);
            // What opens the volumes.
            own.push(ObjectRef {
                kind: "Secret".into(),
                namespace: job.work.release_namespace.clone(),
                name: cluster::credentials_name(job),
            });
            self.keep(job, own, days, attempt).await?;
        }
        if let Some(head) = &head {
            attempt.step("Run Helm").await?;
            self.uninstall(job, head, attempt).await?;
        }
        attempt.step("Wait until nothing is left").await?;
        self.wait_gone(job, objects, &claims, attempt).await?;
        if days.is_none() {
            cluster::delete_credentials(&self.clients, &self.installation, job).await?;
        }
        Ok(())
    }

    /// Has Helm remove the release. It says that it did where it could not read the release at all (`--ignore-not-found` of Helm 4): its
    /// record tells.
    pub(super) async fn uninstall(
        &self,
        job: &Job,
        head: &release::Head,
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        let dir = Workdir::new(&self.helm.tmp)?;
        let argv = uninstall(job, self.helm.timeout)?;
        self.helm
            .run(&argv, &dir, attempt)
            .await
            .map_err(not_refused)?;
        match self.own_head(job).await? {
            Some(now) if now == *head => Err(Fault::Outage {
                what: "the Kubernetes API".into(),
                error: "Helm could not read the release and removed nothing".into(),
            }),
            _ => Ok(()),
        }
    }

    /// Records what will be left, before anything goes: afterwards a manifest that says so may be gone.
    async fn keep(
        &self,
        job: &Job,
        objects: Vec<ObjectRef>,
        days: Option<u32>,
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        let mut kept = vec![];
        for object in objects {
            if let Some(uid) = cluster::find_uid(&self.clients, &object).await? {
                kept.push(Kept { object, uid });
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = kept
            .iter()
            .map(|k| format!("{} {}", k.object.kind, k.object.name))
            .collect();
        attempt.log("svcforge", &format!("is kept: {}", names.join(", ")));
        let mut tx = attempt.pool.begin().await?;
        if !db::queue::hold(&mut tx, attempt.task.id, attempt.task.token).await? {
            return Err(Fault::Stopped(Stop::LeaseLost));
        }
        db::leftover::keep(&mut tx, job.instance_id, &kept, days).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn wait_gone(
        &self,
        job: &Job,
        mut objects: Vec<ObjectRef>,
        claims: &[ObjectRef],
        attempt: &Attempt,
    ) -> Result<(), Fault> {
        let until = tokio::time::Instant::now() + self.helm.timeout;
        let mut said = String::new();
        loop {
            let mut left = cluster::still_there(&self.clients, &objects).await?;
            if left.is_empty() {
                // Claims go after the pods that use them.
                left = cluster::delete_claims(&self.clients, claims).await?;
            }
            match self.own_head(job).await? {
                Some(head) => left.push(format!(
                    "release revision {} ({})",
                    head.revision, head.status
                )),
                None if left.is_empty() => {}
                None => {
                    let of = (&*job.work.release_namespace, &*job.work.release_name);
                    let deleted = cluster::delete_released(&self.clients, of, &objects).await?;
                    for other in &deleted.others {
                        let what =
                            format!("left alone: {} {} is another's", other.kind, other.name);
                        attempt.log("svcforge", &what);
                    }
                    if !(deleted.spared.is_empty() && deleted.others.is_empty()) {
                        // Helm would never remove them: what is left is listed as such, and not waited for.
                        objects
                            .retain(|o| !deleted.spared.contains(o) && !deleted.others.contains(o));
                        self.keep(job, deleted.spared, None, attempt).await?;
                        continue;
                    }
                }
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

/// A removal that Helm refuses may succeed later: a kind that nobody knows at the moment comes back with its definition.
fn not_refused(fault: Fault) -> Fault {
    match fault {
        Fault::Rejected(why) => Fault::Failed(why),
        other => other,
    }
}
