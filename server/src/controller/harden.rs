//! The pod that everybody gets (contract §1.3): the only place where security settings, resources and the probe are written.

use super::OF;
use crate::cluster::ServiceDefinitionSpec;
use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, EnvVar, PodSecurityContext, PodSpec,
        PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile, SecurityContext,
        TCPSocketAction,
    },
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1::ObjectMeta, util::intstr::IntOrString,
    },
};
use std::collections::BTreeMap;

/// Version of the stamp. A change of it restarts every workload, so it goes out as a rollout (N6); the template's hash has a test.
pub const STAMP_VERSION: u32 = 1;
/// The uid and gid that everything runs as.
const NOBODY: i64 = 65532;

/// The template's labels: exactly these, another one would restart every existing workload.
pub(super) fn labels(name: &str) -> BTreeMap<String, String> {
    let label = |key: &str| (key.to_owned(), name.to_owned());
    BTreeMap::from([label("app.kubernetes.io/name"), label(OF)])
}

/// The selector: the name alone.
pub(super) fn selector(name: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app.kubernetes.io/name".to_owned(), name.to_owned())])
}

/// The pod template of a definition of that name.
pub fn pod_template(name: &str, spec: &ServiceDefinitionSpec) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels(name)),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            automount_service_account_token: Some(false),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(NOBODY),
                run_as_group: Some(NOBODY),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".into(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            containers: vec![container(spec)],
            ..PodSpec::default()
        }),
    }
}

fn container(spec: &ServiceDefinitionSpec) -> Container {
    Container {
        name: "app".into(),
        image: Some(spec.image.clone()),
        ports: Some(vec![ContainerPort {
            name: Some("http".into()),
            container_port: spec.port,
            ..ContainerPort::default()
        }]),
        env: Some(environment(spec)),
        readiness_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::String("http".into()),
                ..TCPSocketAction::default()
            }),
            initial_delay_seconds: Some(2),
            period_seconds: Some(10),
            ..Probe::default()
        }),
        resources: Some(ResourceRequirements {
            requests: Some(quantities("50m", "64Mi")),
            limits: Some(quantities("500m", "256Mi")),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".into()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}

/// The map in the order of its keys, then `PORT` unless the spec sets it itself.
fn environment(spec: &ServiceDefinitionSpec) -> Vec<EnvVar> {
    let var = |name: &str, value: &str| EnvVar {
        name: name.into(),
        value: Some(value.into()),
        ..EnvVar::default()
    };
    let mut all: Vec<EnvVar> = spec
        .env
        .iter()
        .map(|(name, value)| var(name, value))
        .collect();
    if !spec.env.contains_key("PORT") {
        all.push(var("PORT", &spec.port.to_string()));
    }
    all
}

fn quantities(cpu: &str, memory: &str) -> BTreeMap<String, Quantity> {
    BTreeMap::from([
        ("cpu".to_owned(), Quantity(cpu.into())),
        ("memory".to_owned(), Quantity(memory.into())),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;
    use sha2::{Digest, Sha256};

    /// N6: it may only change together with [`STAMP_VERSION`].
    #[test]
    fn the_stamp_changes_only_with_its_version() {
        let spec = ServiceDefinitionSpec {
            image: "ghcr.io/x:1".into(),
            port: 8080,
            replicas: 1,
            env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            ..ServiceDefinitionSpec::default()
        };
        let json = serde_json::to_vec(&pod_template("web", &spec)).expect("JSON");
        assert_eq!(
            (
                STAMP_VERSION,
                HEXLOWER.encode(&Sha256::digest(json)).as_str()
            ),
            (
                1,
                "9806d9c8842dbd44b3fb579e08a49ad748be0be1edf5bfb0b6ba089825169303"
            ),
            "a change here restarts every workload: raise STAMP_VERSION, too"
        );
    }

    #[test]
    fn port_comes_last_unless_the_spec_sets_it() {
        let spec = |env: &[(&str, &str)]| ServiceDefinitionSpec {
            port: 9000,
            env: env
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..ServiceDefinitionSpec::default()
        };
        let names = |s: &ServiceDefinitionSpec| -> Vec<(String, String)> {
            environment(s)
                .into_iter()
                .map(|e| (e.name, e.value.unwrap_or_default()))
                .collect()
        };
        let own = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(
            names(&spec(&[("Z", "1"), ("A", "2")])),
            [own("A", "2"), own("Z", "1"), own("PORT", "9000")]
        );
        assert_eq!(
            names(&spec(&[("PORT", "1"), ("A", "2")])),
            [own("A", "2"), own("PORT", "1")]
        );
        assert_eq!(
            container(&spec(&[("PORT", "1")])).ports.expect("ports")[0].container_port,
            9000
        );
    }
}
