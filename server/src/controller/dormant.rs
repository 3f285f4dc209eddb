//! Sleeps until the watch can be served, and says which of namespace, RBAC and CRD it waits for. Never an error loop.

use super::run::Pace;
use k8s_openapi::api::{
    authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    core::v1::Namespace,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A right that a controller needs in its namespace: group, resource (with `/status` where meant), verbs.
pub(super) type Right = (&'static str, &'static str, &'static [&'static str]);

/// Waits until objects of these kinds, the controller's own first, can be watched with these rights. False when stopped before.
pub(super) async fn wait_until_served(
    client: &Client,
    namespace: &str,
    resources: &[ApiResource],
    rights: &[Right],
    pace: &Pace,
    stop: &CancellationToken,
) -> bool {
    let own = resources.first().map_or("", |r| r.plural.as_str());
    let mut said = None;
    loop {
        let lacking = missing(client, namespace, resources, rights).await;
        let dormant = f64::from(u8::from(lacking.is_some()));
        metrics::gauge!("svcforge_controller_dormant", "resource" => own.to_owned()).set(dormant);
        let Some(reason) = lacking else {
            tracing::info!(event = "controller.started", resource = own, namespace);
            return true;
        };
        if said.as_ref() != Some(&reason) {
            tracing::warn!(event = "controller.dormant", resource = own, namespace, reason = %reason);
            said = Some(reason);
        }
        let pause = pace.dormant.mul_f64(0.75 + crate::ids::jitter() / 2.0);
        tokio::select! {
            () = stop.cancelled() => return false,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What is missing, if anything.
async fn missing(
    client: &Client,
    namespace: &str,
    resources: &[ApiResource],
    rights: &[Right],
) -> Option<String> {
    // Asked for explicitly: a list in a namespace that is missing answers 200 and empty.
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.get_metadata(namespace).await {
        Ok(_) => {}
        Err(kube::Error::Api(s)) if s.code == 404 => {
            return Some(format!("the namespace {namespace} is missing"));
        }
        Err(kube::Error::Api(s)) if s.code == 403 => {
            return Some(format!(
                "RBAC or the namespace is missing: namespace {namespace} may not be read ({})",
                s.message
            ));
        }
        Err(error) => return Some(unreachable_words(&error)),
    }
    for resource in resources {
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, resource);
        match objects.list_metadata(&ListParams::default().limit(1)).await {
            Ok(_) => {}
            Err(kube::Error::Api(s)) if s.code == 404 => {
                return Some(format!(
                    "the CRD {}.{} is missing: `svcforge crd` prints it",
                    resource.plural, resource.group
                ));
            }
            Err(kube::Error::Api(s)) if s.code == 403 => {
                return Some(format!("RBAC is missing: {}", s.message));
            }
            Err(error) => return Some(unreachable_words(&error)),
        }
    }
    for (group, resource, verbs) in rights {
        for verb in *verbs {
            match may(client, namespace, group, resource, verb).await {
                Ok(true) => {}
                Ok(false) => {
                    return Some(format!(
                        "RBAC is missing: may not {verb} {resource} in {namespace}"
                    ));
                }
                Err(error) => return Some(unreachable_words(&error)),
            }
        }
    }
    None
}

fn unreachable_words(error: &kube::Error) -> String {
    format!("the Kubernetes API does not answer: {error}")
}

/// Asks the API server whether we may.
async fn may(
    client: &Client,
    namespace: &str,
    group: &str,
    resource: &str,
    verb: &str,
) -> kube::Result<bool> {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource,
                verb: Some(verb.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|s| s.allowed))
}

/// How often it looks while it sleeps, by default.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(5);
