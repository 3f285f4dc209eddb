//! What a definition comes to (contract §1.2): no I/O, no clock.

use super::harden::{labels, pod_template, selector};
use crate::cluster::{NAME_RULE, ServiceDefinition};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Service, ServicePort, ServiceSpec},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use kube::{Resource, ResourceExt};

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// It is being removed: garbage collection does the rest.
    Noop,
    /// It was admitted, and cannot be honoured: nothing is applied, its status says why.
    Refuse(Vec<Fault>),
    /// These two, whole.
    Apply(Box<Owned>),
}

/// A field that cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The field's path, as the API server names it.
    pub path: String,
    /// What it must be.
    pub detail: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.path, self.detail)
    }
}

/// The complete owned set.
#[derive(Clone, Debug, PartialEq)]
pub struct Owned {
    /// What runs it.
    pub deployment: Deployment,
    /// What reaches it.
    pub service: Service,
}

/// Plans a definition.
pub fn plan(of: &ServiceDefinition) -> Plan {
    if of.metadata.deletion_timestamp.is_some() {
        return Plan::Noop;
    }
    let faults = check(of);
    if !faults.is_empty() {
        return Plan::Refuse(faults);
    }
    let name = of.name_any();
    Plan::Apply(Box::new(Owned {
        deployment: Deployment {
            metadata: meta(of, &name),
            spec: Some(DeploymentSpec {
                replicas: Some(of.spec.replicas),
                selector: LabelSelector {
                    match_labels: Some(selector(&name)),
                    ..LabelSelector::default()
                },
                template: pod_template(&name, &of.spec),
                ..DeploymentSpec::default()
            }),
            status: None,
        },
        service: Service {
            metadata: meta(of, &name),
            spec: Some(ServiceSpec {
                selector: Some(selector(&name)),
                ports: Some(vec![ServicePort {
                    name: Some("http".into()),
                    port: 80,
                    target_port: Some(IntOrString::String("http".into())),
                    ..ServicePort::default()
                }]),
                ..ServiceSpec::default()
            }),
            status: None,
        },
    }))
}

fn meta(of: &ServiceDefinition, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: of.namespace(),
        labels: Some(labels(name)),
        owner_references: Some(of.controller_owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    }
}

/// The rules of the CRD, and of the API server for what is made of it, asked again: an object may be older than they are.
fn check(of: &ServiceDefinition) -> Vec<Fault> {
    let mut faults = vec![];
    let mut fault = |path: String, detail: &str| {
        faults.push(Fault {
            path,
            detail: detail.into(),
        });
    };
    let name = of.name_any();
    if !is_service_name(&name) {
        fault("metadata.name".into(), NAME_RULE);
    }
    if of.spec.image.is_empty() || of.spec.image.trim() != of.spec.image {
        fault(
            "spec.image".into(),
            "must not be empty, nor begin or end with white space",
        );
    }
    if !(1..=65535).contains(&of.spec.port) {
        fault("spec.port".into(), "must be between 1 and 65535");
    }
    if of.spec.replicas < 0 {
        fault("spec.replicas".into(), "must not be negative");
    }
    for key in of.spec.env.keys() {
        // The API server's rule since 1.34: printable ASCII but for '='.
        if key.is_empty() || key.chars().any(|c| !(' '..='~').contains(&c) || c == '=') {
            fault(
                format!("spec.env[{key}]"),
                "must have a name of printable ASCII without '='",
            );
        }
    }
    faults
}

fn is_service_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(inner)
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn definition(name: &str, spec: Value) -> ServiceDefinition {
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "apps", "uid": "u"}, "spec": spec}),
        )
        .expect("a definition")
    }

    fn refused(name: &str, spec: Value) -> Vec<String> {
        match plan(&definition(name, spec)) {
            Plan::Refuse(faults) => faults.into_iter().map(|f| f.path).collect(),
            Plan::Apply(_) => vec![],
            Plan::Noop => vec!["noop".into()],
        }
    }

    #[test]
    fn a_definition_that_is_being_removed_is_left_alone() {
        let mut of = definition("web", json!({"image": "x"}));
        of.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(plan(&of), Plan::Noop);
    }

    /// Contract §1.3, field by field: what is not named there is not set.
    #[test]
    fn exactly_what_the_contract_names_is_applied() {
        let Plan::Apply(owned) = plan(&definition("web", json!({"image": "ghcr.io/x:1"}))) else {
            panic!("applied")
        };
        let labels =
            json!({"app.kubernetes.io/name": "web", "polychrome.dev/service-definition": "web"});
        let meta = json!({"name": "web", "namespace": "apps", "labels": labels, "ownerReferences": [{
            "apiVersion": "polychrome.dev/v1alpha1", "kind": "ServiceDefinition", "name": "web", "uid": "u", "controller": true}]});
        assert_eq!(
            serde_json::to_value(&owned.deployment).expect("JSON"),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app.kubernetes.io/name": "web"}},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "automountServiceAccountToken": false,
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "app", "image": "ghcr.io/x:1",
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "env": [{"name": "PORT", "value": "8080"}],
                        "readinessProbe": {"tcpSocket": {"port": "http"}, "initialDelaySeconds": 2, "periodSeconds": 10},
                        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
                        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}}}]}}}})
        );
        assert_eq!(
            serde_json::to_value(&owned.service).expect("JSON"),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {
                "selector": {"app.kubernetes.io/name": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}})
        );
    }

    /// C26, C27: the same refusals as the API server's.
    #[test]
    fn what_cannot_be_honoured_is_refused_with_its_path() {
        let image = json!({"image": "x"});
        let long = "a".repeat(63);
        for good in ["a", "web-1", long.as_str()] {
            assert!(refused(good, image.clone()).is_empty(), "{good}");
        }
        for bad in [
            "-x",
            "..",
            "1a",
            "a-",
            "A",
            "a.b",
            &"a".repeat(64),
            &"a".repeat(253),
        ] {
            assert_eq!(refused(bad, image.clone()), ["metadata.name"], "{bad}");
        }
        for (spec, path) in [
            (json!({"image": ""}), "spec.image"),
            (json!({"image": " x"}), "spec.image"),
            (json!({"image": "x", "port": 0}), "spec.port"),
            (json!({"image": "x", "port": 65536}), "spec.port"),
            (json!({"image": "x", "replicas": -1}), "spec.replicas"),
            (json!({"image": "x", "env": {"": "v"}}), "spec.env[]"),
            (json!({"image": "x", "env": {"A=B": "v"}}), "spec.env[A=B]"),
            (json!({"image": "x", "env": {"Ä": "v"}}), "spec.env[Ä]"),
        ] {
            assert_eq!(refused("web", spec), [path]);
        }
        let odd = json!({"image": "x", "env": {"1 odd.name": ""}});
        let Plan::Apply(owned) = plan(&definition("web", odd)) else {
            panic!("an odd name is allowed")
        };
        let json = serde_json::to_value(&owned.deployment).expect("JSON");
        assert_eq!(
            json["spec"]["template"]["spec"]["containers"][0]["env"][0],
            json!({"name": "1 odd.name", "value": ""}),
            "applied exactly"
        );
    }
}
