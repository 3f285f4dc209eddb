//! Where instances stand towards the catalog: the view `standing`, which version_drift, admission, claim, API and portal read.

use super::Timestamptz;
use jiff::Timestamp;
use sqlx::PgExecutor;
use svcforge_app::domain::{Act, Facts, InstanceState, OpenUpgrade, Standing};
use uuid::Uuid;

/// A row of the view.
#[derive(Clone, Debug)]
#[allow(
    missing_docs,
    reason = "columns of the view, described where it is made"
)]
pub struct Row {
    pub now: Timestamptz,
    pub instance_id: Uuid,
    pub team_id: Uuid,
    pub team: String,
    pub name: String,
    pub service_type: String,
    pub state: String,
    pub maintenance_window: Option<String>,
    pub entry_revision_id: Uuid,
    pub chart_version: String,
    pub target_id: Option<Uuid>,
    pub target_version: Option<String>,
    pub security: bool,
    pub pin_until: Option<Timestamptz>,
    pub pin_reason: Option<String>,
    pub pin_by: Option<String>,
    pub hold_kind: Option<String>,
    pub hold_reason: Option<String>,
    pub paused: Option<String>,
    pub rollout_state: Option<String>,
    pub reason: Option<String>,
    pub changed_by: Option<String>,
    pub since: Option<Timestamptz>,
    pub max_in_flight: Option<i32>,
    pub all_state: Option<String>,
    pub all_reason: Option<String>,
    pub all_by: Option<String>,
    pub all_since: Option<Timestamptz>,
    pub verdict: Option<String>,
    pub sentence: Option<String>,
    pub task_id: Option<Uuid>,
    pub task_state: Option<String>,
    pub run_after: Option<Timestamptz>,
    pub act: Option<String>,
    pub rollout_type: Option<String>,
    pub slot_since: Option<Timestamptz>,
}

macro_rules! standing {
    ($tail:tt $(, $arg:expr)*) => {
        sqlx::query_as!(
            Row,
            r#"select now() as "now!", instance_id as "instance_id!", team_id as "team_id!", team as "team!", name as "name!",
                      service_type as "service_type!", state as "state!", maintenance_window,
                      entry_revision_id as "entry_revision_id!", chart_version as "chart_version!", target_id, target_version,
                      security as "security!", pin_until, pin_reason, pin_by, hold_kind, hold_reason, paused, rollout_state, reason,
                      changed_by, since, max_in_flight, all_state, all_reason, all_by, all_since, verdict, sentence, task_id, task_state,
                      run_after, act, rollout_type, slot_since
               from standing "# + $tail
            $(, $arg)*
        )
    };
}

/// Of these instances.
///
/// # Errors
/// From Postgres.
pub async fn of(db: impl PgExecutor<'_>, instances: &[Uuid]) -> sqlx::Result<Vec<Row>> {
    standing!("where instance_id = any($1)", instances)
        .fetch_all(db)
        .await
}

/// Ready instances of another revision than the catalog's, for which no upgrade waits or runs: by type, the own team's first.
///
/// # Errors
/// From Postgres.
pub async fn candidates(db: impl PgExecutor<'_>, own_team: &str) -> sqlx::Result<Vec<Row>> {
    standing!(
        "where state = 'ready' and target_id <> entry_revision_id and task_id is null
         order by service_type, (team = $1) desc, created_at, instance_id",
        own_team
    )
    .fetch_all(db)
    .await
}

/// Upgrades that are due and wait to be admitted, in their order.
///
/// # Errors
/// From Postgres.
pub async fn gated(db: impl PgExecutor<'_>) -> sqlx::Result<Vec<Row>> {
    // From the tasks to their instances, as an array: a plan must not begin with every instance there is.
    standing!(
        "where task_state = 'gated' and instance_id = any(array(select instance_id from task where state = 'gated'))
         order by service_type, priority, task_id"
    )
        .fetch_all(db)
        .await
}

/// Instances of a type that do not run the catalog's revision, in the order in which they will: at most `limit`.
///
/// # Errors
/// From Postgres.
pub async fn outdated(
    db: impl PgExecutor<'_>,
    service_type: &str,
    own_team: &str,
    limit: i64,
) -> sqlx::Result<Vec<Row>> {
    standing!(
        "where service_type = $1 and target_id <> entry_revision_id and state not in ('deleting', 'deleted')
         order by (task_state = 'running') desc nulls last, (slot_since is not null) desc, (task_id is not null) desc, (team = $2) desc, created_at, instance_id
         limit $3",
        service_type,
        own_team,
        limit
    )
    .fetch_all(db)
    .await
}

/// How a halt is told.
pub fn halt_words(
    of: &str,
    by: Option<&str>,
    since: Option<Timestamp>,
    reason: Option<&str>,
) -> String {
    let when = since.map_or(String::new(), |t| {
        t.strftime(" %Y-%m-%d %H:%M UTC").to_string()
    });
    format!(
        "{of}halted by {}{when}: {}",
        by.unwrap_or("svcforge"),
        reason.unwrap_or("no reason was given")
    )
}

impl Row {
    /// Why nothing of its type, or nothing at all, may start.
    pub fn halted(&self) -> Option<String> {
        let halted = |state: &Option<String>| state.as_deref() == Some("halted");
        if halted(&self.all_state) {
            return Some(halt_words(
                "everything ",
                self.all_by.as_deref(),
                self.all_since.map(Timestamptz::to_jiff),
                self.all_reason.as_deref(),
            ));
        }
        halted(&self.rollout_state).then(|| {
            halt_words(
                "",
                self.changed_by.as_deref(),
                self.since.map(Timestamptz::to_jiff),
                self.reason.as_deref(),
            )
        })
    }

    /// What `may_act` is told, but for slots.
    pub fn facts(&self) -> Facts {
        Facts {
            now: self.now.to_jiff(),
            halted: self.halted(),
            window: self.maintenance_window.clone(),
            security: self.security,
            pinned: self.pin_until.map(|until| {
                let until = until.to_jiff();
                let why = format!(
                    "pinned by {} until {}: {}",
                    self.pin_by.as_deref().unwrap_or("somebody"),
                    until.strftime("%Y-%m-%d %H:%M UTC"),
                    self.pin_reason.as_deref().unwrap_or_default()
                );
                (why, until)
            }),
            held: self
                .hold_kind
                .as_ref()
                .map(|_| format!("held: {}", self.hold_reason.as_deref().unwrap_or_default())),
            paused: self.paused.clone(),
            incomplete: match self.verdict.as_deref() {
                Some("failed" | "progressing") => self.sentence.clone(),
                _ => None,
            },
            ..Facts::default()
        }
    }

    /// For [`explain`](svcforge_app::domain::standing::explain).
    pub fn standing(&self, ahead: Option<i64>) -> Standing {
        Standing {
            state: self.state.parse().unwrap_or(InstanceState::Failed),
            version: self.chart_version.clone(),
            target: self.target_version.clone(),
            outdated: self.target_id.is_some_and(|t| t != self.entry_revision_id),
            task: self.task_id.map(|_| OpenUpgrade {
                running: self.task_state.as_deref() == Some("running"),
                run_after: self
                    .run_after
                    .map_or(Timestamp::UNIX_EPOCH, Timestamptz::to_jiff),
                act: self.act.as_deref().and_then(Act::parse),
                started: self.slot_since.is_some(),
            }),
            facts: self.facts(),
            ahead,
        }
    }
}
