//! A team's namespace: made and labelled by the worker, Pod Security `restricted`, never taken over from somebody else.

use super::{Clients, INSTALLATION, MANAGER};
use crate::provision::Fault;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt, api::PostParams};
use std::collections::BTreeMap;

/// Makes the namespace if there is none.
///
/// # Errors
/// [`Fault::Rejected`] when it is not ours, naming its owner; [`Fault::Outage`] while it is being removed.
pub async fn ensure_namespace(
    clients: &Clients,
    installation: &str,
    team: &str,
    name: &str,
) -> Result<(), Fault> {
    let api: Api<Namespace> = Api::all(clients.request.clone());
    if let Some(found) = api.get_opt(name).await? {
        return check_ours(&found, installation);
    }
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.into());
    namespace.metadata.labels = Some(BTreeMap::from(
        [
            (INSTALLATION, installation),
            ("svcforge.dev/team", team),
            ("app.kubernetes.io/managed-by", "svcforge"),
            ("pod-security.kubernetes.io/enforce", "restricted"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned())),
    ));
    let params = PostParams {
        field_manager: Some(MANAGER.into()),
        ..Default::default()
    };
    match api.create(&params, &namespace).await {
        Ok(_) => Ok(()),
        // Another worker was faster, or a retried call met its own success.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            check_ours(&api.get(name).await?, installation)
        }
        Err(error) => Err(error.into()),
    }
}

fn check_ours(found: &Namespace, installation: &str) -> Result<(), Fault> {
    let name = found.name_any();
    if found.labels().get(INSTALLATION).map(String::as_str) != Some(installation) {
        let owner = super::release::owner_words(found.labels());
        return Err(Fault::Rejected(format!(
            "namespace {name} is not svcforge's: it belongs to {owner}. It was not touched"
        )));
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Err(Fault::Outage {
            what: format!("namespace {name} to be gone"),
            error: "it is being removed".into(),
        });
    }
    Ok(())
}
