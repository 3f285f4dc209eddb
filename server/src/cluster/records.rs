//! Helm's records, page by page, as metadata only, and of that only what is read: a cluster's ten thousand are parsed every tick.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Client, Resource,
    api::{ListParams, Request},
};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Records a page: one may carry a megabyte that the API server reads and does not send.
pub(super) const PAGE: u32 = 500;

/// What is read of one record.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// Of the Secret.
    pub name: String,
    /// Where it is.
    pub namespace: String,
    /// What Helm says of the release.
    pub labels: BTreeMap<String, String>,
}

// kube's `ObjectList` keeps every field of every object twice while it reads (`serde(flatten)`). Both fields are required: an answer
// without them is none.
#[derive(Deserialize)]
struct Page {
    metadata: Next,
    #[serde(deserialize_with = "null_or_items")]
    items: Vec<Item>,
}

/// An empty list's items are null.
fn null_or_items<'de, D: Deserializer<'de>>(items: D) -> Result<Vec<Item>, D::Error> {
    Ok(Option::deserialize(items)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct Next {
    #[serde(rename = "continue", default)]
    token: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: Record,
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
        let page: Page = client.request(asked).await?;
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
        let page = |text| serde_json::from_str::<Page>(text).map(|p| p.items.len());
        assert_eq!(page(r#"{"metadata": {}, "items": null}"#).ok(), Some(0));
        let one = r#"{"metadata": {"continue": "x"}, "items": [{"metadata": {"name": "a", "managedFields": [{}]}}]}"#;
        assert_eq!(page(one).ok(), Some(1));
        assert!(page(r#"{"metadata": {}, "kind": "Status"}"#).is_err());
    }
}
