//! Instances of kind `service_definition`: the object is applied; its controller does the rest.

use super::{Fault, Job};
use crate::{
    catalog::compose,
    cluster::{
        Clients, INSTALLATION, INSTANCE, MANAGER, ServiceDefinition, ServiceDefinitionSpec, release,
    },
    db::{self, observed::ObjectRef},
    queue::{Attempt, Stop},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use std::time::Duration;
use svcforge_app::domain::Readiness;

fn api(clients: &Clients, job: &Job) -> Api<ServiceDefinition> {
    Api::namespaced(clients.request.clone(), &job.work.release_namespace)
}

fn check_ours(found: &ServiceDefinition, installation: &str, job: &Job) -> Result<(), Fault> {
    let what = format!("ServiceDefinition {}", found.name_any());
    release::check_ours(
        &what,
        found.labels(),
        installation,
        &job.instance_id.to_string(),
    )
}

/// Applies the object.
pub(super) async fn install(
    clients: &Clients,
    installation: &str,
    job: &Job,
    attempt: &Attempt,
) -> Result<Vec<ObjectRef>, Fault> {
    attempt.step("Check that it is ours").await?;
    let api = api(clients, job);
    if let Some(found) = api.get_opt(&job.work.release_name).await? {
        check_ours(&found, installation, job)?;
    }
    attempt.step("Apply the definition").await?;
    let spec = serde_json::Value::Object(compose(&job.entry, &job.parameters, ""));
    let mut spec: ServiceDefinitionSpec = serde_json::from_value(spec)
        .map_err(|e| Fault::Rejected(format!("the definition cannot be read: {e}")))?;
    spec.owner = Some(format!("team:{}", job.work.team));
    spec.template = Some(format!(
        "{}@{}",
        job.entry.service_type, job.entry.chart_version
    ));
    let object = json!({
        "apiVersion": "polychrome.dev/v1alpha1",
        "kind": "ServiceDefinition",
        "metadata": {"name": job.work.release_name, "labels": {INSTALLATION: installation, INSTANCE: job.instance_id.to_string()}},
        "spec": spec,
    });
    let params = PatchParams::apply(MANAGER).force();
    let applied = api
        .patch(&job.work.release_name, &params, &Patch::Apply(&object))
        .await?;
    // By its generation drift tells a person's edit from ours.
    let generation = applied.metadata.generation.unwrap_or(0);
    let task = &attempt.task;
    if !db::instance::record_revision(
        &attempt.pool,
        job.instance_id,
        i32::try_from(generation).unwrap_or(i32::MAX),
        task.id,
        task.token,
    )
    .await?
    {
        return Err(Fault::Stopped(Stop::LeaseLost));
    }
    attempt.log(
        "svcforge",
        &format!(
            "applied ServiceDefinition {}/{}",
            job.work.release_namespace, job.work.release_name
        ),
    );
    attempt
        .seen(&Readiness::unknown(
            "Applied; its controller has not said yet how it serves",
        ))
        .await?;
    Ok(vec![])
}

/// Removes the object and waits until it is gone.
pub(super) async fn remove(
    clients: &Clients,
    installation: &str,
    job: &Job,
    attempt: &Attempt,
) -> Result<(), Fault> {
    attempt.step("Remove the definition").await?;
    let api = api(clients, job);
    let name = &job.work.release_name;
    let Some(found) = api.get_opt(name).await? else {
        return Ok(());
    };
    check_ours(&found, installation, job)?;
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.uid(),
            resource_version: None,
        }),
        ..DeleteParams::foreground()
    };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        other => other.map(|_| ())?,
    }
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while api.get_metadata_opt(name).await?.is_some() {
        if tokio::time::Instant::now() > until {
            return Err(Fault::Failed(format!(
                "ServiceDefinition {name} is still there"
            )));
        }
        tokio::select! {
            stop = attempt.until_stopped() => return Err(Fault::Stopped(stop)),
            () = tokio::time::sleep(Duration::from_millis(300)) => {}
        }
    }
    Ok(())
}
