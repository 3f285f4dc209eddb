//! Server functions: actor → port → answer, nothing else. Paths are explicit: they do not
//! change from build to build. Arguments travel as JSON, like the answers: one codec in the browser. All are
//! reads; what changes something is a plain form post (see the server's `http/forms.rs`), which works without JavaScript.

#![allow(
    missing_docs,
    reason = "the macro makes a struct of each function and its arguments"
)]

use crate::domain::{CatalogEntry, CatalogView, InstancePage, Problem, Team};
use crate::pages::{InstanceQuery, ServiceDetail, SiteInfo};
use leptos::{
    prelude::*,
    server_fn::{
        codec::{Json, JsonEncoding},
        error::{FromServerFnError, ServerFnErrorErr},
    },
};

impl FromServerFnError for Problem {
    type Encoder = JsonEncoding;

    fn from_server_fn_error(error: ServerFnErrorErr) -> Self {
        match error {
            ServerFnErrorErr::Request(_) | ServerFnErrorErr::Response(_) => {
                Problem::unavailable("The server cannot be reached.")
            }
            _ => Problem::internal(),
        }
    }
}

#[cfg(feature = "ssr")]
fn portal() -> Result<std::sync::Arc<dyn crate::port::Portal>, Problem> {
    use_context::<crate::port::PortalContext>()
        .map(|c| c.0)
        .ok_or_else(|| Problem::unauthorized("Open a sign-in link."))
}

/// An error of a server function answers with the problem's status, not with 500 for all.
#[cfg(feature = "ssr")]
fn told<T>(result: Result<T, Problem>) -> Result<T, Problem> {
    if let (Err(problem), Some(response)) = (&result, use_context::<leptos_axum::ResponseOptions>())
        && let Ok(status) = axum_status(problem.status)
    {
        response.set_status(status);
    }
    result
}

#[cfg(feature = "ssr")]
fn axum_status(code: u16) -> Result<http::StatusCode, http::status::InvalidStatusCode> {
    http::StatusCode::from_u16(code)
}

/// What the header says.
#[server(prefix = "/api/fn", endpoint = "site", input = Json)]
pub async fn site() -> Result<SiteInfo, Problem> {
    told(portal()?.site().await)
}

/// Teams in which one may request.
#[server(prefix = "/api/fn", endpoint = "teams", input = Json)]
pub async fn teams() -> Result<Vec<Team>, Problem> {
    told(portal()?.teams().await)
}

/// The catalog.
#[server(prefix = "/api/fn", endpoint = "catalog", input = Json)]
pub async fn catalog() -> Result<CatalogView, Problem> {
    told(portal()?.catalog().await)
}

/// One entry.
#[server(prefix = "/api/fn", endpoint = "entry", input = Json)]
pub async fn entry(service_type: String) -> Result<CatalogEntry, Problem> {
    told(portal()?.entry(service_type).await)
}

/// A page of instances.
#[server(prefix = "/api/fn", endpoint = "instances", input = Json)]
pub async fn instances(query: InstanceQuery) -> Result<InstancePage, Problem> {
    told(portal()?.instances(query).await)
}

/// A page that the server draws whole, as HTML.
#[server(prefix = "/api/fn", endpoint = "drawn", input = Json)]
pub async fn drawn(name: String) -> Result<String, Problem> {
    told(portal()?.drawn(name).await)
}

/// Everything about one.
#[server(prefix = "/api/fn", endpoint = "detail", input = Json)]
pub async fn detail(id: String) -> Result<ServiceDetail, Problem> {
    told(portal()?.detail(id).await)
}
