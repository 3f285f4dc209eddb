//! What Helm is called with: `--flag=value`, `--` before positionals, names checked before they get near argv. Pure.

use crate::provision::{Fault, Job};
use std::{path::Path, time::Duration};
use svcforge_app::domain::name::check_label;

/// Labels of the release record, by which drift is read without decoding anything.
#[derive(Clone, Debug)]
pub struct Marks<'a> {
    /// Installation.
    pub installation: &'a str,
    /// Digest of the values.
    pub values: &'a str,
    /// The attempt's lease token.
    pub token: i64,
}

fn checked(job: &Job) -> Result<(), Fault> {
    let (release, namespace) = (&job.work.release_name, &job.work.release_namespace);
    check_label(release, 53)
        .map_err(|why| Fault::Rejected(format!("release name {release:?} {why}")))?;
    check_label(namespace, 63)
        .map_err(|why| Fault::Rejected(format!("namespace {namespace:?} {why}")))
}

/// A label value: at most 63 of `[A-Za-z0-9._-]`.
pub fn label_value(text: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
            c
        } else {
            '_'
        }
    };
    let cut: String = text.chars().take(63).map(safe).collect();
    cut.trim_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// `helm upgrade --install` of the chart archive with one values file.
pub fn upgrade(
    job: &Job,
    marks: &Marks<'_>,
    chart: &Path,
    values: &Path,
    timeout: Duration,
) -> Result<Vec<String>, Fault> {
    checked(job)?;
    let labels = [
        (crate::cluster::INSTALLATION, marks.installation.to_owned()),
        (crate::cluster::INSTANCE, job.instance_id.to_string()),
        ("svcforge.dev/entry-revision", job.revision_id.to_string()),
        ("svcforge.dev/values", marks.values.to_owned()),
        ("svcforge.dev/token", marks.token.to_string()),
    ]
    .map(|(key, value)| format!("{key}={}", label_value(&value)))
    .join(",");
    Ok(vec![
        "upgrade".into(),
        "--install".into(),
        format!("--namespace={}", job.work.release_namespace),
        format!("--timeout={}s", timeout.as_secs()),
        "--history-max=10".into(),
        format!("--labels={labels}"),
        format!("--values={}", values.display()),
        "--".into(),
        job.work.release_name.clone(),
        chart.display().to_string(),
    ])
}

/// `helm uninstall`.
pub fn uninstall(job: &Job, timeout: Duration) -> Result<Vec<String>, Fault> {
    checked(job)?;
    Ok(vec![
        "uninstall".into(),
        // Else it does not say why it failed.
        "--debug".into(),
        "--ignore-not-found".into(),
        format!("--namespace={}", job.work.release_namespace),
        format!("--timeout={}s", timeout.as_secs()),
        "--".into(),
        job.work.release_name.clone(),
    ])
}

/// What Helm's words mean: an outage, a refusal that no second attempt mends, or a failure. `server` is the API's address, as Helm was
/// given it.
pub fn judge(stderr: &str, server: &str) -> Fault {
    let words = last_words(stderr);
    let own = own_words(stderr);
    let has = |needles: &[&str]| needles.iter().any(|n| own.contains(n));
    if has(&["being terminated"]) {
        return Fault::Outage {
            what: "a namespace that is being removed".into(),
            error: words,
        };
    }
    // Before anything is asked of the API: what could not be reached then is what a schema refers to.
    if has(&["values don't meet the specifications"]) {
        return Fault::Rejected(words);
    }
    if request_failed(&own, server)
        || has(&[
            "connection refused",
            "connection reset",
            "i/o timeout",
            "TLS handshake timeout",
            "cluster unreachable",
            "no such host",
            "etcdserver",
            "too many requests",
            "server is currently unable to handle",
            "unable to return a response in the time allotted",
            "Internal error occurred",
            "failed calling webhook",
            "unexpected EOF",
            "unexpected error when reading response body",
            "http2: client connection lost",
            "server sent GOAWAY",
        ])
    {
        return Fault::Outage {
            what: "the Kubernetes API".into(),
            error: words,
        };
    }
    if has(&[
        "parse error at",
        "execution error at",
        "error calling",
        "YAML parse error",
        "error converting YAML",
        "unable to build kubernetes objects",
        "error validating data",
        "is invalid:",
        "Chart.yaml file is missing",
    ]) {
        return Fault::Rejected(words);
    }
    Fault::Failed(words)
}

/// Whether a request to the API got no answer: Go's HTTP client names method, address and cause then. Not when Helm's own timeout ended
/// it: what it waited for took too long.
fn request_failed(own: &str, server: &str) -> bool {
    let (server, methods) = (
        server.trim_end_matches('/'),
        ["Get", "Head", "Post", "Put", "Patch", "Delete"],
    );
    let named = methods
        .iter()
        .any(|m| own.contains(&format!("{m} \"{server}/")));
    named && (!own.contains("context deadline exceeded") || own.contains("Client.Timeout"))
}

/// What Helm itself says, its log included, and not what a chart's hook has printed between. A log line quotes what is quoted.
fn own_words(stderr: &str) -> String {
    let (before, last) = stderr.split_at(stderr.rfind("Error:").unwrap_or(0));
    let log = before
        .lines()
        .filter(|l| l.starts_with("level=") || l.contains(" [debug] "));
    let own: Vec<&str> = log.chain([last]).collect();
    own.join("\n").replace("\\\"", "\"")
}

/// Helm's own words, without what it says around them.
fn last_words(stderr: &str) -> String {
    let at = stderr.rfind("Error:").unwrap_or(0);
    let words: String = stderr[at..]
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let words = words.strip_prefix("Error: ").unwrap_or(&words);
    if words.is_empty() {
        "Helm ended without a word".into()
    } else {
        words.chars().take(2000).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_fit_kubernetes() {
        assert_eq!(label_value("1.0.0+build.5"), "1.0.0_build.5");
        assert_eq!(label_value(&"a".repeat(80)).len(), 63);
        assert_eq!(label_value("-x,y=z-"), "x_y_z");
    }

    const SERVER: &str = "https://127.0.0.1:1/";

    #[test]
    fn helms_words_are_judged() {
        assert!(matches!(
            judge(
                "Error: Kubernetes cluster unreachable: dial tcp: connection refused",
                SERVER
            ),
            Fault::Outage { .. }
        ));
        // As Helm 4 said it when the API server went away in the middle of an upgrade.
        let cut = r#"Error: UPGRADE FAILED: error validating "": error validating data: failed to download openapi: Get "https://127.0.0.1:1/openapi/v2?timeout=32s": EOF"#;
        assert!(matches!(judge(cut, SERVER), Fault::Outage { .. }));
        assert!(matches!(judge(cut, "https://other"), Fault::Rejected(_)));
        let debug = r#"level=DEBUG msg="uninstall: Failed to delete release" error="[unable to build kubernetes objects for delete: Get \"https://127.0.0.1:1/api\": EOF]"
Error: failed to delete release: x"#;
        assert!(matches!(judge(debug, SERVER), Fault::Outage { .. }));
        let late = r#"Error: UPGRADE FAILED: Get "https://127.0.0.1:1/apis/batch/v1": context deadline exceeded"#;
        assert!(matches!(judge(late, SERVER), Fault::Failed(_)));
        assert_eq!(
            judge(
                "level=WARN\nError: UPGRADE FAILED: template: web/templates/a.yaml:3: execution error at (web/a.yaml:3:4): no size",
                SERVER
            ),
            Fault::Rejected("UPGRADE FAILED: template: web/templates/a.yaml:3: execution error at (web/a.yaml:3:4): no size".into())
        );
        assert!(matches!(
            judge("Error: UPGRADE FAILED: timed out", SERVER),
            Fault::Failed(_)
        ));
        assert_eq!(
            judge("", SERVER),
            Fault::Failed("Helm ended without a word".into())
        );
    }

    #[test]
    fn what_a_hook_or_a_schema_could_not_reach_is_no_outage_of_the_api() {
        let hook = "Post \"https://payments/\": dial tcp: connection refused\nError: UPGRADE FAILED: post-upgrade hooks failed: job a failed: BackoffLimitExceeded";
        assert!(matches!(judge(hook, SERVER), Fault::Failed(_)));
        let schema = "Error: UPGRADE FAILED: values don't meet the specifications of the schema(s) in the following chart(s):\nweb:\nHTTP request failed for https://schemas/a: Get \"https://schemas/a\": dial tcp: lookup schemas: no such host";
        assert!(matches!(judge(schema, SERVER), Fault::Rejected(_)));
    }
}
