//! A provisioner without a cluster: for `--cluster simulated`, for pure logic, and for faults that cannot be had otherwise.

use super::{Fault, Job, Provisioner};
use crate::{db::observed::ObjectRef, queue::Attempt};
use async_trait::async_trait;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
    time::Duration,
};
use svcforge_app::domain::Readiness;

/// Plays a script: what the next calls end in, else success after a pause.
#[derive(Debug, Default)]
pub struct Scripted {
    /// How long each call takes.
    pub pause: Duration,
    script: Mutex<VecDeque<Fault>>,
}

impl Scripted {
    /// Every call takes `pause` and succeeds.
    pub fn new(pause: Duration) -> Self {
        Self {
            pause,
            ..Self::default()
        }
    }

    /// The next call that is not scripted yet ends in this fault.
    pub fn fail_next(&self, fault: Fault) {
        self.script
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push_back(fault);
    }

    /// Forgets what was scripted and has not been played.
    pub fn forget(&self) {
        self.script
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clear();
    }

    async fn play(&self, attempt: &Attempt) -> Result<(), Fault> {
        tokio::select! {
            stop = attempt.until_stopped() => return Err(Fault::Stopped(stop)),
            () = tokio::time::sleep(self.pause) => {}
        }
        match self
            .script
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .pop_front()
        {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Provisioner for Scripted {
    async fn install(&self, job: &Job, attempt: &Attempt) -> Result<Vec<ObjectRef>, Fault> {
        attempt.step("Simulate the install").await?;
        attempt.log(
            "svcforge",
            &format!(
                "simulated: {} {} as {}",
                job.entry.service_type, job.entry.chart_version, job.work.release_name
            ),
        );
        self.play(attempt).await?;
        attempt
            .seen(&Readiness::unknown("Simulated: nothing is observed"))
            .await?;
        Ok(vec![])
    }

    async fn remove(&self, _job: &Job, attempt: &Attempt) -> Result<(), Fault> {
        attempt.step("Simulate the removal").await?;
        self.play(attempt).await
    }

    async fn credentials(&self, job: &Job) -> Result<BTreeMap<String, String>, Fault> {
        Ok(job
            .entry
            .credentials
            .iter()
            .map(|c| {
                (
                    c.name.clone(),
                    c.value.clone().unwrap_or_else(|| "simulated".into()),
                )
            })
            .collect())
    }
}
