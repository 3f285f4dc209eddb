//! Credentials: made once per instance in a Secret that svcforge owns; neither upgrade nor repair changes them.

use super::{Clients, INSTALLATION, INSTANCE, MANAGER};
use crate::{
    ids,
    provision::{Fault, Job},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use std::collections::BTreeMap;

/// The Secret's name.
pub fn name(job: &Job) -> String {
    format!("{}-credentials", job.work.release_name)
}

fn api(clients: &Clients, job: &Job) -> Api<Secret> {
    Api::namespaced(clients.request.clone(), &job.work.release_namespace)
}

fn check_ours(found: &Secret, job: &Job, installation: &str) -> Result<(), Fault> {
    let what = format!("Secret {}", found.name_any());
    super::release::check_ours(
        &what,
        found.labels(),
        installation,
        &job.instance_id.to_string(),
    )
}

/// Passes the Secret of an instance of ours that is gone on to the one that adopts its release; its values stay.
///
/// # Errors
/// [`Fault::Rejected`] when it is not this installation's.
pub async fn adopt_credentials(
    clients: &Clients,
    installation: &str,
    job: &Job,
) -> Result<(), Fault> {
    let api = api(clients, job);
    let Some(found) = api.get_opt(&name(job)).await? else {
        return Ok(());
    };
    if found.labels().get(INSTALLATION).map(String::as_str) != Some(installation) {
        return check_ours(&found, job, installation);
    }
    let labels =
        serde_json::json!({"metadata": {"labels": {INSTANCE: job.instance_id.to_string()}}});
    api.patch(&name(job), &PatchParams::default(), &Patch::Merge(&labels))
        .await?;
    Ok(())
}

/// Makes the Secret if there is none.
///
/// # Errors
/// [`Fault::Rejected`] when a Secret of that name is not ours.
pub async fn ensure_credentials(
    clients: &Clients,
    installation: &str,
    job: &Job,
) -> Result<(), Fault> {
    let api = api(clients, job);
    if let Some(found) = api.get_opt(&name(job)).await? {
        return check_ours(&found, job, installation);
    }
    let mut secret = Secret::default();
    secret.metadata.name = Some(name(job));
    secret.metadata.labels = Some(BTreeMap::from([
        (INSTALLATION.to_owned(), installation.to_owned()),
        (INSTANCE.to_owned(), job.instance_id.to_string()),
        (
            "app.kubernetes.io/managed-by".to_owned(),
            "svcforge".to_owned(),
        ),
    ]));
    let value = |c: &crate::catalog::Credential| {
        c.value
            .clone()
            .unwrap_or_else(|| ids::new_password(c.length, &c.alphabet.chars().collect::<Vec<_>>()))
    };
    secret.string_data = Some(
        job.entry
            .credentials
            .iter()
            .map(|c| (c.name.clone(), value(c)))
            .collect(),
    );
    let params = PostParams {
        field_manager: Some(MANAGER.into()),
        ..Default::default()
    };
    match api.create(&params, &secret).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            check_ours(&api.get(&name(job)).await?, job, installation)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the credentials. For a sealed answer only.
///
/// # Errors
/// [`Fault::Failed`] when there are none (yet).
pub async fn read_credentials(
    clients: &Clients,
    installation: &str,
    job: &Job,
) -> Result<BTreeMap<String, String>, Fault> {
    if job.entry.credentials.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = api(clients, job).get_opt(&name(job)).await?;
    let found =
        found.ok_or_else(|| Fault::Failed("its credentials have not been made yet".into()))?;
    check_ours(&found, job, installation)?;
    let data = found.data.unwrap_or_default();
    Ok(data
        .into_iter()
        .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
        .collect())
}

/// Removes the Secret, if it is ours.
///
/// # Errors
/// From the API.
pub async fn delete_credentials(
    clients: &Clients,
    installation: &str,
    job: &Job,
) -> Result<(), Fault> {
    let api = api(clients, job);
    let Some(found) = api.get_opt(&name(job)).await? else {
        return Ok(());
    };
    check_ours(&found, job, installation)?;
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: found.uid(),
            resource_version: None,
        }),
        ..Default::default()
    };
    match api.delete(&name(job), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error.into()),
    }
}
