//! Whether anything of an instance is left, and the removal of what Helm leaves behind.

use super::Clients;
use crate::{db::observed::ObjectRef, provision::Fault};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, ObjectMeta,
        Preconditions,
    },
};

/// Kinds of objects that charts are made of, and where they live. Others are not looked for.
fn resource(kind: &str) -> Option<ApiResource> {
    let (group, version) = match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => ("apps", "v1"),
        "Job" | "CronJob" => ("batch", "v1"),
        "Ingress" | "NetworkPolicy" => ("networking.k8s.io", "v1"),
        "PodDisruptionBudget" => ("policy", "v1"),
        "HorizontalPodAutoscaler" => ("autoscaling", "v2"),
        "Role" | "RoleBinding" => ("rbac.authorization.k8s.io", "v1"),
        "Service" | "ConfigMap" | "Secret" | "ServiceAccount" | "PersistentVolumeClaim" | "Pod" => {
            ("", "v1")
        }
        _ => return None,
    };
    Some(ApiResource::from_gvk(&GroupVersionKind::gvk(
        group, version, kind,
    )))
}

/// Those of the objects that are still there, and pods of theirs.
///
/// # Errors
/// From the API.
pub async fn still_there(clients: &Clients, objects: &[ObjectRef]) -> Result<Vec<String>, Fault> {
    let mut left = vec![];
    for object in objects {
        if find_uid(clients, object).await?.is_some() {
            left.push(format!("{} {}", object.kind, object.name));
        }
    }
    for (namespace, names) in by_namespace(objects) {
        let pods: Api<Pod> = Api::namespaced(clients.request.clone(), &namespace);
        for pod in pods.list_metadata(&ListParams::default()).await?.items {
            if pod
                .owner_references()
                .iter()
                .any(|o| names.iter().any(|n| owned_by(&o.name, n)))
            {
                left.push(format!("Pod {}", pod.name_any()));
            }
        }
    }
    Ok(left)
}

/// The uid of an object of a known kind, if it is there.
///
/// # Errors
/// From the API.
pub async fn find_uid(clients: &Clients, object: &ObjectRef) -> Result<Option<String>, Fault> {
    let Some(resource) = resource(&object.kind) else {
        return Ok(None);
    };
    let api: Api<DynamicObject> =
        Api::namespaced_with(clients.request.clone(), &object.namespace, &resource);
    let found = api.get_metadata_opt(&object.name).await?;
    Ok(found.and_then(|o| o.metadata.uid))
}

fn by_namespace(objects: &[ObjectRef]) -> std::collections::BTreeMap<String, Vec<String>> {
    let mut map = std::collections::BTreeMap::<String, Vec<String>>::new();
    for object in objects.iter().filter(|o| {
        matches!(
            o.kind.as_str(),
            "Deployment" | "StatefulSet" | "DaemonSet" | "Job"
        )
    }) {
        map.entry(object.namespace.clone())
            .or_default()
            .push(object.name.clone());
    }
    map
}

/// Whether an owner is the workload, or a ReplicaSet that a Deployment made (`<name>-<hash>`).
fn owned_by(owner: &str, workload: &str) -> bool {
    owner == workload
        || owner
            .strip_prefix(workload)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|hash| {
                (8..=10).contains(&hash.len()) && hash.bytes().all(|b| b.is_ascii_alphanumeric())
            })
}

/// The claims that StatefulSets among the objects have made: named `<template>-<set>-<ordinal>` *and* labelled by the set's
/// selector, as its controller does. A claim that only looks like one is somebody else's.
///
/// # Errors
/// From the API.
pub async fn claims_of(clients: &Clients, objects: &[ObjectRef]) -> Result<Vec<ObjectRef>, Fault> {
    let mut claims = vec![];
    for set in objects.iter().filter(|o| o.kind == "StatefulSet") {
        let sets: Api<StatefulSet> = Api::namespaced(clients.request.clone(), &set.namespace);
        let Some(spec) = sets.get_opt(&set.name).await?.and_then(|s| s.spec) else {
            continue;
        };
        let templates: Vec<String> = spec
            .volume_claim_templates
            .iter()
            .flatten()
            .map(ResourceExt::name_any)
            .collect();
        let labels = spec.selector.match_labels.unwrap_or_default();
        if templates.is_empty() || labels.is_empty() {
            continue;
        }
        let selector: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(clients.request.clone(), &set.namespace);
        let found = api
            .list_metadata(&ListParams::default().labels(&selector.join(",")))
            .await?;
        let names = found.items.iter().map(ResourceExt::name_any);
        let own = names.filter(|name| templates.iter().any(|t| is_claim_of(name, t, &set.name)));
        claims.extend(own.map(|name| ObjectRef {
            kind: "PersistentVolumeClaim".into(),
            namespace: set.namespace.clone(),
            name,
        }));
    }
    Ok(claims)
}

/// Deletes these claims; those still there are returned.
///
/// # Errors
/// From the API.
pub async fn delete_claims(clients: &Clients, claims: &[ObjectRef]) -> Result<Vec<String>, Fault> {
    delete(clients, claims, |_| true).await
}

/// Deletes what Helm has left of a release whose record is gone: it skips what it cannot read at that moment, and forgets the release
/// all the same. Only what is annotated as that release's; those still there are returned.
///
/// # Errors
/// From the API.
pub async fn delete_released(
    clients: &Clients,
    (namespace, release): (&str, &str),
    objects: &[ObjectRef],
) -> Result<Vec<String>, Fault> {
    let of = [
        ("meta.helm.sh/release-name", release),
        ("meta.helm.sh/release-namespace", namespace),
    ];
    delete(clients, objects, |meta| {
        let notes = meta.annotations.as_ref();
        of.iter()
            .all(|(k, v)| notes.and_then(|n| n.get(*k)).is_some_and(|is| is == v))
    })
    .await
}

/// Deletes those of the objects of a known kind that may be; those still there are returned.
async fn delete(
    clients: &Clients,
    objects: &[ObjectRef],
    may: impl Fn(&ObjectMeta) -> bool,
) -> Result<Vec<String>, Fault> {
    let mut left = vec![];
    for object in objects {
        let Some(resource) = resource(&object.kind) else {
            continue;
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(clients.request.clone(), &object.namespace, &resource);
        let Some(found) = api.get_metadata_opt(&object.name).await? else {
            continue;
        };
        if found.metadata.deletion_timestamp.is_none() && may(&found.metadata) {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: found.uid(),
                    resource_version: None,
                }),
                ..DeleteParams::background()
            };
            match api.delete(&object.name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                other => drop(other?),
            }
        }
        left.push(format!("{} {}", object.kind, object.name));
    }
    Ok(left)
}

fn is_claim_of(claim: &str, template: &str, set: &str) -> bool {
    let ordinal = claim
        .strip_prefix(template)
        .and_then(|rest| rest.strip_prefix('-')?.strip_prefix(set)?.strip_prefix('-'));
    ordinal.is_some_and(|o| !o.is_empty() && o.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_claims_and_pods() {
        assert!(
            is_claim_of("data-db-abc-0", "data", "db-abc")
                && is_claim_of("data-db-abc-12", "data", "db-abc")
        );
        assert!(
            !is_claim_of("backup-db-abc-0", "data", "db-abc")
                && !is_claim_of("data-db-abc-x", "data", "db-abc")
        );
        assert!(owned_by("web-abc-5d9c7b6f8d", "web-abc") && owned_by("web", "web"));
        assert!(!owned_by("web-abc-other-5d9c7b6f8d", "web-abc"));
    }
}
