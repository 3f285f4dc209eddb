//! A problem: something the asker can put right (RFC 9457), or an error of ours without its cause.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// JSON pointer into the request (RFC 6901), e.g. `/parameters/size`.
    pub pointer: String,
    /// What is wrong and what would be right.
    pub detail: String,
}

/// RFC 9457 problem details.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ssr", derive(utoipa::ToSchema))]
pub struct Problem {
    /// A stable name: `urn:svcforge:problem:<word>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The same for every problem of that type.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// This one, in words.
    pub detail: String,
    /// Field by field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// To quote when asking for help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Seconds after which another try makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

impl Problem {
    /// What it says, with the first field that is wrong.
    pub fn sentence(&self) -> String {
        match self.errors.first() {
            Some(e) => format!(
                "{} ({} {})",
                self.detail,
                e.pointer.trim_start_matches('/'),
                e.detail
            ),
            None => self.detail.clone(),
        }
    }

    /// A problem of that type.
    pub fn new(status: u16, word: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:svcforge:problem:{word}"),
            title: title.into(),
            status,
            detail: detail.into(),
            errors: vec![],
            request_id: None,
            retry_after: None,
        }
    }

    /// 400: cannot be read at all.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(400, "bad-request", "The request cannot be read", detail)
    }

    /// 401: nobody is signed in.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(401, "unauthorized", "Sign in first", detail)
    }

    /// 403: seen, but not allowed.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(403, "forbidden", "Not allowed", detail)
    }

    /// 404: not there, or not for the asker to see.
    pub fn not_found(what: &str) -> Self {
        Self::new(
            404,
            "not-found",
            "Not found",
            format!("There is no such {what}, or it is not yours to see."),
        )
    }

    /// 409: the world is not in the state that the request needs.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(409, "conflict", "Not possible in this state", detail)
    }

    /// 412: what the asker looked at has changed.
    pub fn stale() -> Self {
        Self::new(
            412,
            "stale",
            "It changed meanwhile",
            "It is not what you looked at any more. Look again, then repeat.",
        )
    }

    /// 428: the asker must say what they looked at.
    pub fn look_first() -> Self {
        Self::new(
            428,
            "precondition-required",
            "Look first",
            "Send If-Match with the ETag you looked at.",
        )
    }

    /// 422: readable, but some fields are wrong.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [one] => format!("{}: {}", one.pointer, one.detail),
            many => format!("{} fields need a change.", many.len()),
        };
        Self {
            errors,
            ..Self::new(422, "invalid", "Some fields need a change", detail)
        }
    }

    /// 422 with one field.
    pub fn field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError {
            pointer: pointer.into(),
            detail: detail.into(),
        }])
    }

    /// 500: ours. The cause is in the log under the request id, never here.
    pub fn internal() -> Self {
        Self::new(
            500,
            "internal",
            "Something went wrong on our side",
            "The cause is in svcforge's log under this request id.",
        )
    }

    /// 503: something svcforge needs is away.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self {
            retry_after: Some(5),
            ..Self::new(503, "unavailable", "Not available right now", detail)
        }
    }

    /// What is wrong with the field at `pointer`, or with something in it, if anything.
    pub fn at(&self, pointer: &str) -> Option<String> {
        self.errors.iter().find_map(
            |e| match e.pointer.strip_prefix(pointer)?.strip_prefix('/') {
                Some(within) => Some(format!("{within}: {}", e.detail)),
                None => (e.pointer == pointer).then(|| e.detail.clone()),
            },
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title, self.detail)
    }
}

impl std::error::Error for Problem {}
