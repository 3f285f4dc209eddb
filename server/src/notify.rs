//! Notifications: written to an outbox where something happened, sent later by [`deliver_forever`], never in a check's way.

use crate::{config, db};
use async_trait::async_trait;
use serde_json::{Value, json};
use sqlx::PgPool;
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Tries before a delivery is given up: with pauses to an hour, about a day.
const MOST_TRIES: i32 = 30;

/// Something people are told of.
#[derive(Clone, Debug)]
pub struct Note {
    /// A stable word.
    pub kind: &'static str,
    /// Of which instance.
    pub instance_id: Option<Uuid>,
    /// Of which team.
    pub team: Option<String>,
    /// More.
    pub data: Value,
}

impl Note {
    fn payload(&self) -> Value {
        let mut data = self.data.clone();
        if let Value::Object(map) = &mut data {
            if let Some(id) = self.instance_id {
                map.insert("instance_id".into(), json!(id));
            }
            if let Some(team) = &self.team {
                map.insert("team".into(), json!(team));
            }
        }
        data
    }
}

/// Who is told.
#[async_trait]
pub trait Notifier: Send + Sync + 'static {
    /// Tells all of it, at once.
    ///
    /// # Errors
    /// When it could not even be kept.
    async fn notify(&self, notes: &[Note]) -> anyhow::Result<()>;
}

/// Tells; a failure is logged for every note and stops nothing.
pub async fn tell(notifier: &dyn Notifier, notes: &[Note]) {
    if notes.is_empty() {
        return;
    }
    let Err(error) = notifier.notify(notes).await else {
        return;
    };
    for note in notes {
        tracing::error!(
            event = "notify.failed",
            instance_id = note.instance_id.map(|id| id.to_string()),
            kind = note.kind,
            error = %format!("{error:#}")
        );
    }
}

/// The outbox in Postgres.
#[derive(Clone, Debug)]
pub struct Outbox {
    /// Postgres.
    pub pool: PgPool,
    /// Where everything is sent.
    pub sinks: Vec<String>,
}

#[async_trait]
impl Notifier for Outbox {
    async fn notify(&self, notes: &[Note]) -> anyhow::Result<()> {
        let (kinds, payloads): (Vec<String>, Vec<Value>) = notes
            .iter()
            .map(|note| (note.kind.to_owned(), note.payload()))
            .unzip();
        db::notification::insert(&self.pool, &kinds, &payloads, &self.sinks).await?;
        Ok(())
    }
}

/// Sends what is due.
#[derive(Clone)]
pub struct Sender {
    pool: PgPool,
    http: reqwest::Client,
    webhook: Option<(String, Arc<standardwebhooks::Webhook>)>,
    slack: Option<String>,
}

impl Sender {
    /// For these settings.
    ///
    /// # Errors
    /// When an address or the secret cannot be used: names the setting.
    pub fn new(pool: PgPool, settings: &config::Notify) -> anyhow::Result<Self> {
        crate::tls::install();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(10))
            // A receiver that sends elsewhere is not the one that was named.
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let webhook = match (&settings.webhook_url, &settings.webhook_secret) {
            (Some(url), Some(secret)) => {
                check_url(url, "SVCFORGE_WEBHOOK_URL")?;
                let signer = standardwebhooks::Webhook::new(secret).map_err(|e| {
                    anyhow::anyhow!(
                        "SVCFORGE_WEBHOOK_SECRET must be `whsec_` and base64 of 24 to 64 bytes: {e}"
                    )
                })?;
                Some((url.clone(), Arc::new(signer)))
            }
            (Some(_), None) => anyhow::bail!(
                "SVCFORGE_WEBHOOK_URL is set, SVCFORGE_WEBHOOK_SECRET is not: deliveries are signed"
            ),
            (None, _) => None,
        };
        if let Some(url) = &settings.slack_url {
            check_url(url, "SVCFORGE_SLACK_URL")?;
        }
        Ok(Self {
            pool,
            http,
            webhook,
            slack: settings.slack_url.clone(),
        })
    }

    /// The outbox whose notes this sender sends.
    pub fn outbox(&self) -> Outbox {
        Outbox {
            pool: self.pool.clone(),
            sinks: self.sinks(),
        }
    }

    fn sinks(&self) -> Vec<String> {
        let mut sinks = vec!["log".to_owned()];
        sinks.extend(self.webhook.as_ref().map(|_| "webhook".to_owned()));
        sinks.extend(self.slack.as_ref().map(|_| "slack".to_owned()));
        sinks
    }

    /// Sends what is due now. Returns how many deliveries were tried.
    ///
    /// # Errors
    /// From Postgres.
    pub async fn deliver_once(&self) -> sqlx::Result<usize> {
        let due = db::notification::take_due(&self.pool, &self.sinks(), 20).await?;
        for one in &due {
            match self.send(one).await {
                Ok(()) => db::notification::delivered(&self.pool, one.id, &one.sink).await?,
                Err(error) => {
                    let pause = (one.attempt < MOST_TRIES).then(|| pause_after(one.attempt));
                    let error = format!("{error:#}");
                    let instance = one.payload["instance_id"].as_str().unwrap_or_default();
                    let again_s = pause.map(|p| p.as_secs());
                    tracing::error!(event = "notify.failed", instance_id = instance, sink = %one.sink, kind = %one.kind, attempt = one.attempt + 1, again_s, %error);
                    db::notification::failed(&self.pool, one.id, &one.sink, &error, pause).await?;
                }
            }
        }
        Ok(due.len())
    }

    async fn send(&self, due: &db::notification::Due) -> anyhow::Result<()> {
        let at = due.created_at.to_jiff();
        match (due.sink.as_str(), &self.webhook, &self.slack) {
            ("log", ..) => {
                tracing::info!(event = "notification", kind = %due.kind, notification_id = %due.id, data = %due.payload);
                Ok(())
            }
            ("webhook", Some((url, signer)), _) => {
                let body = serde_json::to_vec(
                    &json!({"type": due.kind, "timestamp": at, "data": due.payload}),
                )?;
                let id = format!("msg_{}", due.id.simple());
                let now = crate::clock::now().as_second();
                let signature = signer.sign(&id, now, &body)?;
                let request = self
                    .http
                    .post(url)
                    .header("content-type", "application/json")
                    .header("webhook-id", id)
                    .header("webhook-timestamp", now.to_string())
                    .header("webhook-signature", signature)
                    .body(body);
                accepted(request).await
            }
            ("slack", _, Some(url)) => {
                let text = slack_text(&due.kind, &due.payload);
                accepted(self.http.post(url).json(&json!({"text": text}))).await
            }
            (other, ..) => anyhow::bail!("nothing sends to {other:?} here"),
        }
    }
}

/// Told in one line; what Slack would take for markup is escaped.
fn slack_text(kind: &str, payload: &Value) -> String {
    let escape = |t: String| {
        t.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
    };
    let mut text = format!("*{kind}*");
    if let Value::Object(map) = payload {
        for (key, value) in map {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!(" · {key}: {}", escape(value)));
        }
    }
    text
}

async fn accepted(request: reqwest::RequestBuilder) -> anyhow::Result<()> {
    let response = request.send().await.map_err(reqwest::Error::without_url)?;
    let status = response.status();
    anyhow::ensure!(status.is_success(), "the receiver answered {status}");
    Ok(())
}

fn check_url(text: &str, setting: &str) -> anyhow::Result<()> {
    let url: url::Url = text
        .parse()
        .map_err(|e| anyhow::anyhow!("{setting} is no URL: {e}"))?;
    anyhow::ensure!(
        matches!(url.scheme(), "http" | "https"),
        "{setting} must begin with https:// or http://"
    );
    Ok(())
}

/// From 5 s to an hour, doubling, with jitter.
fn pause_after(attempt: i32) -> Duration {
    let doublings = u32::try_from(attempt.clamp(0, 10)).unwrap_or(0);
    let most = Duration::from_secs(5 * 2u64.pow(doublings)).min(Duration::from_secs(3600));
    most.mul_f64(0.5 + crate::ids::jitter() / 2.0)
}

/// Sends until told to stop.
pub async fn deliver_forever(sender: Sender, stop: CancellationToken) {
    loop {
        // What a stop leaves half way is due again in a minute: a receiver that says nothing must not keep the lease.
        let delivered = tokio::select! {
            () = stop.cancelled() => return,
            delivered = sender.deliver_once() => delivered,
        };
        match delivered {
            Ok(20) => continue,
            Ok(_) => {}
            Err(error) => tracing::warn!(event = "notify.away", %error),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(2)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_an_hour() {
        for (attempt, at_most) in [(0, 5), (3, 40), (10, 3600), (99, 3600)] {
            let pause = pause_after(attempt).as_secs_f64();
            assert!(
                pause <= f64::from(at_most) && pause >= f64::from(at_most) / 2.0,
                "{attempt}: {pause}"
            );
        }
    }

    #[test]
    fn slack_gets_text_and_no_markup() {
        assert_eq!(
            slack_text("drift.changed", &json!({"team": "<!channel> & co"})),
            "*drift.changed* · team: &lt;!channel&gt; &amp; co"
        );
    }
}
