//! Helm's release records, read without Helm: Secrets of type `helm.sh/release.v1`. Status and owner are in their labels; the
//! payload (base64 → gzip → JSON) is decoded only for one release at a time.

use super::{Clients, INSTALLATION, INSTANCE, objects::kind_name};
use crate::{db::observed::ObjectRef, provision::Fault};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PartialObjectMeta, Patch, PatchParams, PostParams},
};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
};

/// Annotation of what Helm does not remove. Its only value is `keep`; one with any other is not removed either (`resource_policy.go`).
pub const RESOURCE_POLICY: &str = "helm.sh/resource-policy";
/// Largest payload that is decoded, bytes.
const MAX_PAYLOAD: u64 = 32 << 20;

/// The highest revision of a release, from its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Name of its Secret.
    pub secret: String,
    /// Revision.
    pub revision: i32,
    /// `deployed`, `failed`, `pending-install`, …
    pub status: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Seconds since the epoch when its Secret was made.
    pub created_at: Option<i64>,
}

/// Who something belongs to, in words, from its labels.
pub fn owner_words(labels: &BTreeMap<String, String>) -> String {
    match (labels.get(INSTALLATION), labels.get(INSTANCE)) {
        (Some(installation), Some(instance)) => {
            format!("instance {instance} of svcforge installation {installation}")
        }
        (Some(installation), None) => format!("svcforge installation {installation}"),
        _ => match labels.get("app.kubernetes.io/managed-by") {
            Some(manager) => format!("somebody else (managed by {manager})"),
            None => "somebody else (it carries no label of svcforge)".into(),
        },
    }
}

/// Refuses what does not carry our installation's and this instance's label (N1), naming its owner.
///
/// # Errors
/// [`Fault::Rejected`].
pub fn check_ours(
    what: &str,
    labels: &BTreeMap<String, String>,
    installation: &str,
    instance: &str,
) -> Result<(), Fault> {
    let label = |name: &str| labels.get(name).map(String::as_str);
    if label(INSTALLATION) == Some(installation) && label(INSTANCE) == Some(instance) {
        return Ok(());
    }
    let owner = owner_words(labels);
    Err(Fault::Rejected(format!(
        "{what} is not this service's: it belongs to {owner}. It was not touched"
    )))
}

/// Whether a person may have svcforge take over what carries these labels: nobody's, or those of an instance of ours.
pub fn may_adopt(labels: &BTreeMap<String, String>, installation: &str) -> bool {
    labels.get(INSTALLATION).is_none_or(|of| of == installation)
}

fn secrets(clients: &Clients, namespace: &str) -> Api<Secret> {
    Api::namespaced(clients.request.clone(), namespace)
}

/// The highest revision of a release, whatever its status; by metadata only.
///
/// # Errors
/// From the API.
pub async fn head(
    clients: &Clients,
    namespace: &str,
    release: &str,
) -> Result<Option<Head>, Fault> {
    let params = ListParams::default().labels(&format!("owner=helm,name={release}"));
    let list = secrets(clients, namespace).list_metadata(&params).await?;
    Ok(list
        .items
        .into_iter()
        .filter_map(parse_head)
        .max_by_key(|h| h.revision))
}

fn parse_head(meta: PartialObjectMeta<Secret>) -> Option<Head> {
    let labels = meta.labels().clone();
    Some(Head {
        secret: meta.name_any(),
        revision: labels.get("version")?.parse().ok()?,
        status: labels.get("status")?.clone(),
        created_at: meta.metadata.creation_timestamp.map(|t| t.0.as_second()),
        labels,
    })
}

/// What a release's payload says.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// Version of the chart it was made from.
    pub chart_version: String,
    /// The objects of its manifest.
    pub objects: Vec<ObjectRef>,
    /// Those that Helm leaves behind on purpose: they have a [`RESOURCE_POLICY`].
    pub kept: Vec<ObjectRef>,
}

/// Decodes one revision.
///
/// # Errors
/// [`Fault::Failed`] when it cannot be decoded.
pub async fn content(clients: &Clients, namespace: &str, head: &Head) -> Result<Content, Fault> {
    let secret = secrets(clients, namespace).get(&head.secret).await?;
    let payload = decode(&secret)
        .map_err(|e| Fault::Failed(format!("release record {}: {e:#}", head.secret)))?;
    let manifest = payload["manifest"].as_str().unwrap_or_default();
    let (kept, objects) = objects(manifest, namespace);
    Ok(Content {
        chart_version: payload["chart"]["metadata"]["version"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        objects,
        kept,
    })
}

#[derive(Deserialize)]
struct Meta {
    name: String,
    namespace: Option<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Object {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    kind: String,
    metadata: Meta,
}

/// The objects of a manifest, in its order: those that Helm leaves behind on purpose, and the others.
fn objects(manifest: &str, namespace: &str) -> (Vec<ObjectRef>, Vec<ObjectRef>) {
    let documents = manifest.split("\n---").map(|d| d.trim_start_matches("---"));
    let objects = documents.filter_map(|text| serde_saphyr::from_str::<Object>(text).ok());
    let (kept, others): (Vec<Object>, Vec<Object>) = objects.partition(|o| {
        let notes = o.metadata.annotations.as_ref();
        notes.is_some_and(|a| a.contains_key(RESOURCE_POLICY))
    });
    let refer = |o: Object| ObjectRef {
        kind: kind_name(&o.api_version, &o.kind),
        namespace: o.metadata.namespace.unwrap_or_else(|| namespace.into()),
        name: o.metadata.name,
    };
    (
        kept.into_iter().map(refer).collect(),
        others.into_iter().map(refer).collect(),
    )
}

fn decode(secret: &Secret) -> anyhow::Result<Value> {
    let data = secret.data.as_ref().and_then(|d| d.get("release"));
    let data = data.ok_or_else(|| anyhow::anyhow!("has no payload"))?;
    let zipped = data_encoding::BASE64.decode(&data.0)?;
    let mut json = String::new();
    GzDecoder::new(&zipped[..])
        .take(MAX_PAYLOAD)
        .read_to_string(&mut json)?;
    Ok(serde_json::from_str(&json)?)
}

fn encode(payload: &Value) -> anyhow::Result<ByteString> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    gz.write_all(&serde_json::to_vec(payload)?)?;
    Ok(ByteString(
        data_encoding::BASE64.encode(&gz.finish()?).into_bytes(),
    ))
}

/// Frees a release whose last revision a dead attempt of ours left `pending-*`: rewrites its status to `failed` inside the
/// payload and in the label, in one update with the observed resourceVersion. (The label alone frees nothing: seen.)
///
/// # Errors
/// [`Fault::Failed`] when it changed meanwhile, or cannot be decoded.
pub async fn free_pending(clients: &Clients, namespace: &str, head: &Head) -> Result<(), Fault> {
    let api = secrets(clients, namespace);
    let mut secret = api.get(&head.secret).await?;
    let rewritten = mark_failed(&mut secret, &head.status)
        .map_err(|e| Fault::Failed(format!("release record {}: {e:#}", head.secret)))?;
    if rewritten {
        api.replace(
            &head.secret,
            &PostParams {
                field_manager: Some(super::MANAGER.into()),
                ..Default::default()
            },
            &secret,
        )
        .await?;
    }
    Ok(())
}

fn mark_failed(secret: &mut Secret, was: &str) -> anyhow::Result<bool> {
    let mut payload = decode(secret)?;
    if payload["info"]["status"] != was {
        return Ok(false);
    }
    payload["info"]["status"] = Value::String("failed".into());
    payload["info"]["description"] = Value::String(format!(
        "svcforge: the attempt that left this {was} is dead"
    ));
    let data = encode(&payload)?;
    secret
        .data
        .get_or_insert_default()
        .insert("release".into(), data);
    secret
        .metadata
        .labels
        .get_or_insert_default()
        .insert("status".into(), "failed".into());
    Ok(true)
}

/// Puts our labels on the newest revision of a release that carries nobody's; `over` those of an instance of ours that is gone, too.
/// Returns its number.
///
/// # Errors
/// [`Fault::Rejected`] when there is none, or when it is labelled for somebody else.
pub async fn adopt(
    clients: &Clients,
    namespace: &str,
    release: &str,
    installation: &str,
    instance: &str,
    over: bool,
) -> Result<i32, Fault> {
    let head = head(clients, namespace, release)
        .await?
        .ok_or_else(|| Fault::Rejected(format!("there is no release {release} in {namespace}")))?;
    let labelled = [INSTALLATION, INSTANCE]
        .iter()
        .any(|l| head.labels.contains_key(*l));
    if !(over && may_adopt(&head.labels, installation)) && labelled {
        check_ours(
            &format!("release {release}"),
            &head.labels,
            installation,
            instance,
        )?;
        return Ok(head.revision);
    }
    let labels = serde_json::json!({"metadata": {"labels": {INSTALLATION: installation, INSTANCE: instance}}});
    secrets(clients, namespace)
        .patch(
            &head.secret,
            &PatchParams::default(),
            &Patch::Merge(&labels),
        )
        .await?;
    Ok(head.revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pending_record_becomes_failed_and_nothing_else_changes() {
        let payload = json!({"name": "x", "info": {"status": "pending-install", "first_deployed": "t"}, "manifest": "m", "version": 3});
        let mut secret = Secret {
            data: Some(BTreeMap::from([(
                "release".into(),
                encode(&payload).expect("encodes"),
            )])),
            ..Secret::default()
        };
        assert!(mark_failed(&mut secret, "pending-install").expect("rewrites"));
        let after = decode(&secret).expect("decodes");
        assert_eq!(
            (
                after["info"]["status"].as_str(),
                after["info"]["first_deployed"].as_str()
            ),
            (Some("failed"), Some("t"))
        );
        assert_eq!(
            (&after["manifest"], &after["version"]),
            (&payload["manifest"], &payload["version"])
        );
        assert!(
            !mark_failed(&mut secret, "pending-install").expect("reads"),
            "only what was seen is rewritten"
        );
    }

    #[test]
    fn a_manifest_names_its_objects() {
        let manifest = "---\n# Source: a\napiVersion: v1\nkind: Service\nmetadata:\n  name: a\n---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata:\n  name: b\n  namespace: other\n---\n# empty\n---\nkind: ConfigMap\nmetadata:\n  name: c\n  annotations: {helm.sh/resource-policy: keep}\n---\nkind: Secret\nmetadata:\n  name: d\n  annotations: {helm.sh/resource-policy: Retain}\n---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: e\n";
        let (kept, others) = objects(manifest, "ns");
        let names: Vec<_> = kept.iter().map(|o| o.name.as_str()).collect();
        assert_eq!(names, ["c", "d"]);
        let found: Vec<_> = others
            .into_iter()
            .map(|o| (o.kind, o.namespace, o.name))
            .collect();
        let expected = [
            ("Service", "ns", "a"),
            ("StatefulSet", "other", "b"),
            ("Service.v1.serving.knative.dev", "ns", "e"),
        ]
        .map(|(a, b, c)| (a.to_string(), b.to_string(), c.to_string()));
        assert_eq!(found, expected);
    }
}
