//! What the observer saw, and the objects it looks for.

use sqlx::{PgConnection, PgPool};
use svcforge_app::domain::Readiness;
use uuid::Uuid;

/// An object that a release is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Kubernetes kind.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Replaces the recorded parts of an instance.
///
/// # Errors
/// From Postgres.
pub async fn set_parts(
    db: &mut PgConnection,
    instance: Uuid,
    parts: &[ObjectRef],
) -> sqlx::Result<()> {
    sqlx::query!("delete from instance_part where instance_id = $1", instance)
        .execute(&mut *db)
        .await?;
    let kind: Vec<String> = parts.iter().map(|p| p.kind.clone()).collect();
    let namespace: Vec<String> = parts.iter().map(|p| p.namespace.clone()).collect();
    let name: Vec<String> = parts.iter().map(|p| p.name.clone()).collect();
    sqlx::query!(
        "insert into instance_part (instance_id, kind, namespace, name)
         select $1, k, ns, n from unnest($2::text[], $3::text[], $4::text[]) as p (k, ns, n) on conflict do nothing",
        instance,
        &kind,
        &namespace,
        &name
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The recorded parts of instances that should be in the cluster: those released into one of the namespaces, and those named;
/// all when no namespaces are given.
///
/// # Errors
/// From Postgres.
pub async fn list_parts(
    pool: &PgPool,
    namespaces: Option<&[String]>,
    named: &[Uuid],
) -> sqlx::Result<Vec<(Uuid, ObjectRef)>> {
    let rows = sqlx::query!(
        "select p.instance_id, p.kind, p.namespace, p.name from instance_part p join instance i on i.id = p.instance_id
         where i.state <> 'deleted' and ($1::text[] is null or i.release_namespace = any($1) or i.id = any($2))",
        namespaces,
        named
    )
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|r| {
            (
                r.instance_id,
                ObjectRef {
                    kind: r.kind,
                    namespace: r.namespace,
                    name: r.name,
                },
            )
        })
        .collect())
}

/// Keeps a verdict. True when it differs from the one before.
///
/// # Errors
/// From Postgres.
pub async fn upsert(
    db: impl sqlx::PgExecutor<'_>,
    instance: Uuid,
    seen: &Readiness,
) -> sqlx::Result<bool> {
    let verdict = serde_json::to_value(seen.verdict)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_default();
    let parts = serde_json::to_value(&seen.parts).unwrap_or_default();
    let written = sqlx::query!(
        "insert into instance_observed (instance_id, verdict, sentence, parts, at) values ($1, $2, $3, $4, now())
         on conflict (instance_id) do update set verdict = excluded.verdict, sentence = excluded.sentence, parts = excluded.parts, at = now()
         where (instance_observed.verdict, instance_observed.sentence, instance_observed.parts)
               is distinct from (excluded.verdict, excluded.sentence, excluded.parts)",
        instance,
        verdict,
        seen.sentence,
        parts
    )
    .execute(db)
    .await?;
    Ok(written.rows_affected() == 1)
}

/// The recorded parts of one instance.
///
/// # Errors
/// From Postgres.
pub async fn parts_of(pool: &PgPool, instance: Uuid) -> sqlx::Result<Vec<ObjectRef>> {
    sqlx::query_as!(
        ObjectRef,
        "select kind, namespace, name from instance_part where instance_id = $1",
        instance
    )
    .fetch_all(pool)
    .await
}
