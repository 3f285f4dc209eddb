//! What a Kubernetes error means: an outage, a refusal, or a failure.

use crate::provision::Fault;

const API: &str = "the Kubernetes API";

impl From<kube::Error> for Fault {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) => by_status(status.code, &status.message),
            // Whatever keeps an answer from arriving is an outage.
            _ => Self::Outage {
                what: API.into(),
                error: chain(&error),
            },
        }
    }
}

fn by_status(code: u16, message: &str) -> Fault {
    let outage = |what: &str| Fault::Outage {
        what: what.into(),
        error: message.to_owned(),
    };
    match code {
        403 if message.contains("being terminated") => outage("a namespace that is being removed"),
        409 if message.contains("being deleted") => outage("an object that is being removed"),
        401 | 403 => outage("access to the Kubernetes API"),
        408 | 429 | 500..=599 => outage(API),
        // Somebody is about to make it, or took it away; nothing of what was asked is wrong.
        404 if message.contains("namespaces \"") => outage("a namespace that is not there"),
        404 if ["page not found", "could not find the requested resource"]
            .iter()
            .any(|words| message.contains(words)) =>
        {
            outage("a kind that the cluster does not know: its CRD is missing")
        }
        400 | 422 => Fault::Rejected(message.to_owned()),
        _ => Fault::Failed(message.to_owned()),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_refusals_and_failures_are_told_apart() {
        for code in [408, 429, 500, 502, 503, 504] {
            assert!(
                matches!(by_status(code, ""), Fault::Outage { .. }),
                "{code}"
            );
        }
        assert!(
            matches!(by_status(403, "unable to create new content in namespace x because it is being terminated"), Fault::Outage { what, .. } if what.contains("namespace"))
        );
        for (missing, words) in [
            ("namespaces \"apps\" not found", "namespace"),
            ("404 page not found", "CRD"),
            ("the server could not find the requested resource", "CRD"),
        ] {
            assert!(
                matches!(by_status(404, missing), Fault::Outage { what, .. } if what.contains(words)),
                "{missing}"
            );
        }
        assert!(matches!(
            by_status(404, "secrets \"x\" not found"),
            Fault::Failed(_)
        ));
        assert!(matches!(by_status(422, "invalid"), Fault::Rejected(_)));
        assert!(matches!(by_status(409, "conflict"), Fault::Failed(_)));
    }
}
