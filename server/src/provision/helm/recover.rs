//! Before the next attempt, never beside a live one: whose release is it, and did a dead attempt of ours leave it pending?

use crate::{
    cluster::release::{self, Head},
    db::{self, event::NewEvent},
    provision::{Fault, Job, kubernetes::Kubernetes},
    queue::{Attempt, Stop},
};
use std::time::Duration;

impl Kubernetes {
    /// The highest revision, when it is ours (or none): N1.
    pub(super) async fn own_head(&self, job: &Job) -> Result<Option<Head>, Fault> {
        let (namespace, name) = (&job.work.release_namespace, &job.work.release_name);
        let head = release::head(&self.clients, namespace, name).await?;
        if let Some(head) = &head {
            let what = format!("release {name} in {namespace}");
            release::check_ours(
                &what,
                &head.labels,
                &self.installation,
                &job.instance_id.to_string(),
            )?;
        }
        Ok(head)
    }

    /// Makes the release free for the next attempt, and tells so on the timeline. False where it was free already.
    pub(super) async fn recover(
        &self,
        job: &Job,
        head: &Head,
        attempt: &Attempt,
    ) -> Result<bool, Fault> {
        let namespace = &job.work.release_namespace;
        if head.status == "uninstalling" {
            attempt.step("Finish an interrupted removal").await?;
            self.uninstall(job, head, attempt).await?;
            let what = "an interrupted removal of its release was finished";
            tell(job, attempt, what).await?;
            return Ok(true);
        }
        if !head.status.starts_with("pending-") {
            return Ok(false);
        }
        // Helm merges an older release's labels into a person's own upgrade: the token tells which attempt wrote this very one.
        let token = head
            .labels
            .get("svcforge.dev/token")
            .and_then(|t| t.parse::<i64>().ok());
        let recorded = job.work.release_revision == Some(head.revision)
            && token.is_some()
            && token == job.work.release_token;
        if !recorded {
            // Somebody's own Helm is at work. It cannot be longer than its timeout allows.
            let age = head
                .created_at
                .map_or(i64::MAX, |at| crate::clock::now().as_second() - at);
            let patience = i64::try_from((self.helm.timeout + Duration::from_secs(60)).as_secs())
                .unwrap_or(i64::MAX);
            if age < patience {
                let error = format!(
                    "revision {} is {} and was not written by svcforge; it is left alone for {} s more",
                    head.revision,
                    head.status,
                    patience - age
                );
                return Err(Fault::Outage {
                    what: "a person's own Helm to end".into(),
                    error,
                });
            }
        }
        attempt.step("Free the release").await?;
        release::free_pending(&self.clients, namespace, head).await?;
        tell(
            job,
            attempt,
            &format!(
                "revision {} had been left {} by an attempt that is dead; it was marked failed",
                head.revision, head.status
            ),
        )
        .await?;
        Ok(true)
    }
}

async fn tell(job: &Job, attempt: &Attempt, what: &str) -> Result<(), Fault> {
    attempt.log("svcforge", &format!("recovered: {what}"));
    let mut tx = attempt.pool.begin().await?;
    if !db::queue::hold(&mut tx, attempt.task.id, attempt.task.token).await? {
        return Err(Fault::Stopped(Stop::LeaseLost));
    }
    let event = NewEvent {
        instance_id: job.instance_id,
        kind: "release.recovered",
        actor: "worker",
        message: &format!("Recovered: {what}"),
        task_id: Some(attempt.task.id),
    };
    db::event::insert(&mut tx, event).await?;
    tx.commit().await?;
    Ok(())
}
