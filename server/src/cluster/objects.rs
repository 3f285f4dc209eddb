//! Whether anything of an instance is left, and the removal of what Helm leaves behind.

use super::{Clients, release::RESOURCE_POLICY};
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
    discovery::{Scope, pinned_kind},
    error::DiscoveryError,
};

/// Kinds of objects that most charts are made of, and where they live. Others are asked for.
fn resource(kind: &str) -> Option<ApiResource> {
    let (group, version) = match kind {
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" => ("apps", "v1"),
        "Job" | "CronJob" => ("batch", "v1"),
        "Ingress" | "NetworkPolicy" => ("networking.k8s.io", "v1"),
        "PodDisruptionBudget" => ("policy", "v1"),
        "HorizontalPodAutoscaler" => ("autoscaling", "v2"),
        "Role" | "RoleBinding" => ("rbac.authorization.k8s.io", "v1"),
        "ServiceDefinition" => ("polychrome.dev", "v1alpha1"),
        "Service" | "ConfigMap" | "Secret" | "ServiceAccount" | "PersistentVolumeClaim" | "Pod" => {
            ("", "v1")
        }
        _ => return None,
    };
    Some(ApiResource::from_gvk(&GroupVersionKind::gvk(
        group, version, kind,
    )))
}

/// How a kind is called here: by its name alone where that is one of the usual, else as kubectl takes it, `Kind.version.group`.
pub(super) fn kind_name(api_version: &str, kind: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    match resource(kind) {
        Some(known) if known.group == group => kind.into(),
        _ => format!("{kind}.{version}.{group}"),
    }
}

/// Where an object is reached; nowhere when the cluster does not know its kind (any more).
async fn api_of(
    clients: &Clients,
    object: &ObjectRef,
) -> Result<Option<Api<DynamicObject>>, kube::Error> {
    let client = clients.request.clone();
    if let Some(known) = resource(&object.kind) {
        return Ok(Some(Api::namespaced_with(
            client,
            &object.namespace,
            &known,
        )));
    }
    let mut words = object.kind.splitn(3, '.');
    let (Some(kind), Some(version), Some(group)) = (words.next(), words.next(), words.next())
    else {
        return Ok(None);
    };
    match pinned_kind(&client, &GroupVersionKind::gvk(group, version, kind)).await {
        Ok((resource, is)) if is.scope == Scope::Cluster => {
            Ok(Some(Api::all_with(client, &resource)))
        }
        Ok((resource, _)) => Ok(Some(Api::namespaced_with(
            client,
            &object.namespace,
            &resource,
        ))),
        Err(kube::Error::Discovery(DiscoveryError::MissingKind(_))) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(other) => Err(other),
    }
}

/// An object's metadata, if it is there. Of a kind that is not one of the usual svcforge may not be allowed to know: Helm was, and its
/// word has to do.
async fn read(
    clients: &Clients,
    object: &ObjectRef,
) -> Result<Option<(Api<DynamicObject>, ObjectMeta)>, Fault> {
    let Some(api) = api_of(clients, object).await? else {
        return Ok(None);
    };
    let found = match api.get_metadata_opt(&object.name).await {
        Err(kube::Error::Api(status)) if status.code == 403 && resource(&object.kind).is_none() => {
            None
        }
        found => found?,
    };
    Ok(found.map(|found| (api, found.metadata)))
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

/// The uid of an object, if it is there.
///
/// # Errors
/// From the API.
pub async fn find_uid(clients: &Clients, object: &ObjectRef) -> Result<Option<String>, Fault> {
    let found = read(clients, object).await?;
    Ok(found.and_then(|(_, meta)| meta.uid))
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
    let left = delete(clients, claims, |_| Fate::Delete).await?.left;
    Ok(left
        .iter()
        .map(|o| format!("{} {}", o.kind, o.name))
        .collect())
}

/// What a deletion came to.
#[derive(Debug, Default)]
pub struct Deleted {
    /// On its way, and still there.
    pub left: Vec<ObjectRef>,
    /// Nothing that may be deleted.
    pub spared: Vec<ObjectRef>,
    /// Another's by now.
    pub others: Vec<ObjectRef>,
}

/// Deletes what Helm has left of a release whose record is gone: it skips what it cannot read at that moment, and forgets the release
/// all the same. Only what Helm itself would have deleted; the rest is spared.
///
/// # Errors
/// From the API.
pub async fn delete_released(
    clients: &Clients,
    (namespace, release): (&str, &str),
    objects: &[ObjectRef],
) -> Result<Deleted, Fault> {
    delete(clients, objects, |meta| fate(meta, namespace, release)).await
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Delete,
    Spare,
    /// It is another's.
    Leave,
}

/// Helm removes with a release what `checkOwnership` of its `validate.go` takes for that release's, and has no policy.
fn fate(meta: &ObjectMeta, namespace: &str, release: &str) -> Fate {
    let note = |name: &str| meta.annotations.as_ref()?.get(name).map(String::as_str);
    let label = |name: &str| meta.labels.as_ref()?.get(name).map(String::as_str);
    let of = [
        (note("meta.helm.sh/release-name"), release),
        (note("meta.helm.sh/release-namespace"), namespace),
    ];
    if of.iter().any(|(is, ours)| is.is_some_and(|is| is != *ours)) {
        return Fate::Leave;
    }
    let whole = of.iter().all(|(is, _)| is.is_some());
    match label("app.kubernetes.io/managed-by") {
        Some("Helm") if whole && note(RESOURCE_POLICY).is_none() => Fate::Delete,
        _ => Fate::Spare,
    }
}

/// Deletes those of the objects that may be.
async fn delete(
    clients: &Clients,
    objects: &[ObjectRef],
    fate: impl Fn(&ObjectMeta) -> Fate,
) -> Result<Deleted, Fault> {
    let mut deleted = Deleted::default();
    for object in objects {
        let Some((api, found)) = read(clients, object).await? else {
            continue;
        };
        if found.deletion_timestamp.is_none() {
            let to = match fate(&found) {
                Fate::Delete => None,
                Fate::Spare => Some(&mut deleted.spared),
                Fate::Leave => Some(&mut deleted.others),
            };
            if let Some(to) = to {
                to.push(object.clone());
                continue;
            }
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: found.uid,
                    resource_version: None,
                }),
                ..DeleteParams::background()
            };
            match api.delete(&object.name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                other => drop(other?),
            }
        }
        deleted.left.push(object.clone());
    }
    Ok(deleted)
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
    fn helms_own_and_nothing_that_it_would_spare() {
        let meta = |label: &str, release: &str, namespace: &str, more: &str| -> ObjectMeta {
            serde_json::from_value(serde_json::json!({
                "labels": {"app.kubernetes.io/managed-by": label},
                "annotations": {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace, more: "Keep"},
            }))
            .expect("metadata")
        };
        let is = |meta: &ObjectMeta| fate(meta, "ns", "web");
        assert_eq!(is(&meta("Helm", "web", "ns", "x")), Fate::Delete);
        for spared in [
            meta("kustomize", "web", "ns", "x"),
            meta("Helm", "web", "ns", RESOURCE_POLICY),
            ObjectMeta::default(),
        ] {
            assert_eq!(is(&spared), Fate::Spare, "{spared:?}");
        }
        for other in [
            meta("Helm", "other", "ns", "x"),
            meta("Helm", "web", "other", "x"),
        ] {
            assert_eq!(is(&other), Fate::Leave, "{other:?}");
        }
    }

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
