//! Helm's records, page by page, as metadata only, and of that only what is read: a cluster's ten thousand are parsed every tick. In
//! protobuf, which costs the API server less to write and us less to read than JSON.

use http::header::{ACCEPT, CONTENT_TYPE};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Client, Resource,
    api::{ListParams, Request},
    core::Status,
};
use prost::Message;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Records a page: one may carry a megabyte that the API server reads and does not send.
pub(super) const PAGE: u32 = 500;
/// What is asked for: Kubernetes's protobuf, which skips what is not read here; a gateway that speaks JSON alone may.
const LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                    application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Before every message of that encoding.
const MAGIC: &[u8] = b"k8s\0";

/// What is read of one record. Tags: `ObjectMeta` in apimachinery's `meta/v1/generated.proto`, as all of them here.
#[derive(Clone, PartialEq, Deserialize, Message)]
#[serde(default)]
pub(super) struct Record {
    /// Of the Secret.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Where it is.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// What Helm says of the release.
    #[prost(btree_map = "string, string", tag = "11")]
    pub labels: BTreeMap<String, String>,
}

// kube's `ObjectList` keeps every field of every object twice while it reads (`serde(flatten)`). In JSON both fields are required: an
// answer without them is none.
#[derive(Deserialize, PartialEq, Message)]
struct Page {
    #[prost(message, required, tag = "1")]
    metadata: Next,
    #[serde(deserialize_with = "null_or_items")]
    #[prost(message, repeated, tag = "2")]
    items: Vec<Item>,
}

/// An empty list's items are null.
fn null_or_items<'de, D: Deserializer<'de>>(items: D) -> Result<Vec<Item>, D::Error> {
    Ok(Option::deserialize(items)?.unwrap_or_default())
}

#[derive(Deserialize, PartialEq, Message)]
struct Next {
    #[serde(rename = "continue", default)]
    #[prost(string, tag = "3")]
    token: String,
}

#[derive(Deserialize, PartialEq, Message)]
struct Item {
    #[prost(message, required, tag = "1")]
    metadata: Record,
}

/// `runtime.Unknown`: what every message is wrapped in.
#[derive(PartialEq, Message)]
struct Wrapped {
    #[prost(message, required, tag = "1")]
    kind: TypeMeta,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(PartialEq, Message)]
struct Refusal {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
}

/// Takes the wrapping off what must be of that kind.
fn unwrap<M: Message + Default>(body: &[u8], kind: &str) -> Result<M, String> {
    let rest = body
        .strip_prefix(MAGIC)
        .ok_or("it does not begin as Kubernetes's protobuf does")?;
    let wrapped = Wrapped::decode(rest).map_err(|e| e.to_string())?;
    if wrapped.kind.kind != kind {
        return Err(format!("it is a {:?} and no {kind}", wrapped.kind.kind));
    }
    M::decode(wrapped.raw.as_slice()).map_err(|e| e.to_string())
}

/// An answer that is none.
fn unreadable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> kube::Error {
    kube::Error::ReadEvents(std::io::Error::new(std::io::ErrorKind::InvalidData, why))
}

/// What an answer says, in whichever of the two encodings it came.
fn read(code: u16, protobuf: bool, body: &[u8]) -> Result<Page, kube::Error> {
    if code < 400 {
        return if protobuf {
            unwrap(body, "PartialObjectMetadataList").map_err(unreadable)
        } else {
            serde_json::from_slice(body).map_err(kube::Error::SerdeError)
        };
    }
    let status = if protobuf {
        unwrap::<Refusal>(body, "Status")
            .ok()
            .map(|r| Status::failure(&r.message, &r.reason))
    } else {
        serde_json::from_slice(body).ok()
    };
    let status = status.unwrap_or_else(|| {
        Status::failure(&String::from_utf8_lossy(body), "Failed to parse error data")
    });
    Err(kube::Error::Api(status.with_code(code).boxed()))
}

async fn page(client: &Client, mut asked: http::Request<Vec<u8>>) -> Result<Page, kube::Error> {
    asked
        .headers_mut()
        .insert(ACCEPT, http::HeaderValue::from_static(LIST));
    let answer = client.send(asked.map(Into::into)).await?;
    let code = answer.status().as_u16();
    let protobuf = answer
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(PROTOBUF.as_bytes()));
    let body = answer.into_body().collect().await?.to_bytes();
    read(code, protobuf, &body)
}

/// Every record with that label, in one namespace or in all, to the last page.
///
/// # Errors
/// From the API: 410 when the listing's moment has been forgotten on the way.
pub(super) async fn each(
    client: &Client,
    namespace: Option<&str>,
    labels: &str,
    add: &mut (dyn FnMut(Record) + Send),
) -> Result<(), kube::Error> {
    let request = Request::new(Secret::url_path(&(), namespace));
    let mut params = ListParams::default().labels(labels).limit(PAGE);
    loop {
        let asked = request
            .list_metadata(&params)
            .map_err(kube::Error::BuildRequest)?;
        let page = page(client, asked).await?;
        for item in page.items {
            add(item.metadata);
        }
        if page.metadata.token.is_empty() {
            return Ok(());
        }
        params = params.continue_token(&page.metadata.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_items_are_none_and_an_answer_without_them_is_none() {
        let page = |text: &str| read(200, false, text.as_bytes()).map(|p| p.items.len());
        assert_eq!(page(r#"{"metadata": {}, "items": null}"#).ok(), Some(0));
        let one = r#"{"metadata": {"continue": "x"}, "items": [{"metadata": {"name": "a", "managedFields": [{}]}}]}"#;
        assert_eq!(page(one).ok(), Some(1));
        assert!(page(r#"{"metadata": {}, "kind": "Status"}"#).is_err());
    }

    fn wrap(kind: &str, raw: &impl Message) -> Vec<u8> {
        let kind = TypeMeta { kind: kind.into() };
        let raw = raw.encode_to_vec();
        [MAGIC, &Wrapped { kind, raw }.encode_to_vec()].concat()
    }

    #[test]
    fn protobuf_is_read_only_for_what_it_says_it_is() {
        let metadata = Record {
            name: "a".into(),
            namespace: "b".into(),
            labels: [("owner".to_owned(), "helm".to_owned())].into(),
        };
        let page = Page {
            metadata: Next { token: "x".into() },
            items: vec![Item { metadata }],
        };
        let body = wrap("PartialObjectMetadataList", &page);
        assert_eq!(read(200, true, &body).unwrap(), page);
        assert!(read(200, true, &body[..body.len() - 3]).is_err(), "cut off");
        assert!(read(200, true, &wrap("Status", &page)).is_err());
        assert!(read(200, true, b"{}").is_err(), "not what it was called");
        let refusal = Refusal {
            message: "too old".into(),
            reason: "Expired".into(),
        };
        for (protobuf, body) in [
            (true, wrap("Status", &refusal)),
            (
                false,
                br#"{"message": "too old", "reason": "Expired"}"#.to_vec(),
            ),
        ] {
            let Err(kube::Error::Api(status)) = read(410, protobuf, &body) else {
                panic!("a refusal is an API error")
            };
            assert_eq!(
                (status.code, status.message.as_str(), status.reason.as_str()),
                (410, "too old", "Expired")
            );
        }
        let Err(kube::Error::Api(status)) = read(502, false, b"<html>bad gateway") else {
            panic!("so is a gateway's")
        };
        assert_eq!(
            (status.code, status.message.as_str()),
            (502, "<html>bad gateway")
        );
    }
}
