//! Extractors whose refusals are problems.

use crate::{
    authz::{Actor, Via},
    db,
    error::Error,
    http::AppState,
};
use axum::{
    body::Bytes,
    extract::{
        FromRef, FromRequest, FromRequestParts, Request,
        rejection::{BytesRejection, PathRejection, QueryRejection},
    },
};
use data_encoding::HEXLOWER;
use http::{HeaderMap, header, request::Parts};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use sqlx::PgPool;
use svcforge_app::domain::{FieldError, Problem, UserId};
use tower_sessions::Session;
use uuid::Uuid;

/// A JSON body. A field of the wrong type is named by its pointer.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let is_json = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .is_some_and(|v| {
                v.split(';')
                    .next()
                    .is_some_and(|v| v.trim().eq_ignore_ascii_case("application/json"))
            });
        if !is_json {
            let detail = "Send the body as JSON, with Content-Type: application/json.";
            return Err(Problem::new(415, "unsupported-media-type", "Not JSON", detail).into());
        }
        let bytes = Bytes::from_request(request, state)
            .await
            .map_err(body_refused)?;
        parse(&bytes).map(Self).map_err(Error::from)
    }
}

fn body_refused(rejection: BytesRejection) -> Problem {
    match rejection.status().as_u16() {
        413 => Problem::new(
            413,
            "too-large",
            "The body is too large",
            format!("At most {} bytes are read.", super::MAX_BODY),
        ),
        _ => Problem::bad_request(rejection.body_text()),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let pointer: String = error
            .path()
            .iter()
            .map(|segment| match segment {
                serde_path_to_error::Segment::Seq { index } => format!("/{index}"),
                serde_path_to_error::Segment::Map { key } => {
                    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
                }
                serde_path_to_error::Segment::Enum { variant } => format!("/{variant}"),
                serde_path_to_error::Segment::Unknown => String::new(),
            })
            .collect();
        let inner = error.inner();
        if inner.is_data() {
            Problem::invalid(vec![FieldError {
                pointer,
                detail: inner.to_string(),
            }])
        } else {
            Problem::bad_request(format!("The body is not JSON: {inner}"))
        }
    })?;
    let text = String::from_utf8_lossy(bytes);
    if let Some(at) = text
        .find("\\u0000")
        .filter(|at| !text[..*at].ends_with('\\'))
    {
        return Err(Problem::bad_request(format!(
            "The body may not contain the character U+0000 (at byte {at})."
        )));
    }
    json.end()
        .map_err(|e| Problem::bad_request(format!("The body is not one JSON value: {e}")))?;
    Ok(value)
}

/// Path parameters.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(Error))]
pub struct Path<T>(pub T);

/// Query parameters.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(Error))]
pub struct Query<T>(pub T);

impl From<PathRejection> for Error {
    fn from(_: PathRejection) -> Self {
        // An id that is none names nothing.
        Problem::not_found("thing").into()
    }
}

impl From<QueryRejection> for Error {
    fn from(rejection: QueryRejection) -> Self {
        Problem::bad_request(rejection.body_text()).into()
    }
}

/// The cheapest way to say "whoever they are, they are signed in": the handler gets the [`Actor`].
#[derive(Clone, Debug)]
pub struct Signed(pub Actor);

impl<S> FromRequestParts<S> for Signed
where
    AppState: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let state = AppState::from_ref(state);
        let session = parts.extensions.get::<Session>().cloned();
        actor(&state.ops.pool, &parts.headers, session)
            .await
            .map(Self)
    }
}

/// Who sends this request: by bearer token, else by session.
///
/// # Errors
/// 401 when by neither.
pub async fn actor(
    pool: &PgPool,
    headers: &HeaderMap,
    session: Option<Session>,
) -> Result<Actor, Error> {
    let (user, via) = match bearer(headers) {
        Some(token) => (by_token(pool, token).await?, Via::Token),
        None => (by_session(pool, session).await?, Via::Session),
    };
    let user = user.ok_or_else(|| {
        Problem::unauthorized(match via {
            Via::Token => "The token is unknown, expired or revoked.",
            _ => "Open a sign-in link, or send Authorization: Bearer svcf_….",
        })
    })?;
    let teams = db::team::list_of(pool, user.id).await?;
    Ok(Actor {
        user: UserId(user.id),
        name: user.name,
        admin: user.is_admin,
        teams,
        via,
    })
}

/// The bearer token of a request, if it carries one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

async fn by_token(pool: &PgPool, token: &str) -> Result<Option<db::user::UserRow>, Error> {
    let Some((id, secret)) = token
        .strip_prefix("svcf_")
        .and_then(|rest| rest.split_once('_'))
    else {
        return Ok(None);
    };
    Ok(db::user::find_by_token(pool, id, &hash(secret)).await?)
}

async fn by_session(
    pool: &PgPool,
    session: Option<Session>,
) -> Result<Option<db::user::UserRow>, Error> {
    let Some(session) = session else {
        return Ok(None);
    };
    let user: Option<Uuid> = session
        .get(db::session::USER)
        .await
        .map_err(anyhow::Error::from)?;
    let began: Option<i64> = session
        .get(super::signin::SIGNED_IN_AT)
        .await
        .map_err(anyhow::Error::from)?;
    let fresh = began
        .is_some_and(|at| crate::clock::now().as_second() - at < super::signin::ABSOLUTE_SECONDS);
    match user {
        Some(id) if fresh => Ok(db::user::find_enabled(pool, id).await?),
        _ => Ok(None),
    }
}

/// SHA-256 of a secret of 256 random bits: enough, and fast.
pub fn hash(secret: &str) -> Vec<u8> {
    Sha256::digest(secret.as_bytes()).to_vec()
}

/// Makes a token: what is shown once, its id, and what is kept.
pub fn new_token() -> (String, String, Vec<u8>) {
    let id = HEXLOWER.encode(&crate::ids::new_id().as_u128().to_be_bytes()[8..]);
    let secret = crate::ids::new_secret();
    (format!("svcf_{id}_{secret}"), id, hash(&secret))
}
