//! tower-sessions' store on our Postgres.

use super::Timestamptz;
use async_trait::async_trait;
use sqlx::PgPool;
use std::collections::HashMap;
use tower_sessions::{
    SessionStore,
    session::{Id, Record},
    session_store::{Error, Result},
};
use uuid::Uuid;

/// Key of the signed-in user's id in a session.
pub const USER: &str = "user";

/// Sessions in the table `session`.
#[derive(Clone, Debug)]
pub struct PgSessions {
    pool: PgPool,
}

impl PgSessions {
    /// A store on that pool.
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }
}

fn backend(error: impl ToString) -> Error {
    Error::Backend(error.to_string())
}

fn expiry(record: &Record) -> Result<Timestamptz> {
    let nanos = record.expiry_date.unix_timestamp_nanos();
    Ok(jiff::Timestamp::from_nanosecond(nanos)
        .map_err(backend)?
        .into())
}

fn user(record: &Record) -> Option<Uuid> {
    record
        .data
        .get(USER)
        .and_then(|v| v.as_str())
        .and_then(|s| s.parse().ok())
}

#[async_trait]
impl SessionStore for PgSessions {
    async fn create(&self, record: &mut Record) -> Result<()> {
        loop {
            let data =
                serde_json::to_value(&record.data).map_err(|e| Error::Encode(e.to_string()))?;
            let made = sqlx::query!(
                "insert into session (id, user_id, data, expires_at) values ($1, $2, $3, $4) on conflict do nothing",
                record.id.to_string(),
                user(record),
                data,
                expiry(record)? as _
            )
            .execute(&self.pool)
            .await
            .map_err(backend)?;
            if made.rows_affected() == 1 {
                return Ok(());
            }
            record.id = Id::default();
        }
    }

    async fn save(&self, record: &Record) -> Result<()> {
        let data = serde_json::to_value(&record.data).map_err(|e| Error::Encode(e.to_string()))?;
        // At most once a minute while only the expiry slides. Never an insert: a session that was deleted meanwhile (sign-out, disabled user) must not come back.
        sqlx::query!(
            "update session set user_id = $2, data = $3, expires_at = $4
             where id = $1 and (data <> $3 or expires_at < $4::timestamptz - interval '1 minute')",
            record.id.to_string(),
            user(record),
            data,
            expiry(record)? as _
        )
        .execute(&self.pool)
        .await
        .map_err(backend)?;
        Ok(())
    }

    async fn load(&self, id: &Id) -> Result<Option<Record>> {
        let row = sqlx::query!(
            "select data, expires_at from session where id = $1 and expires_at > now()",
            id.to_string()
        )
        .fetch_optional(&self.pool)
        .await
        .map_err(backend)?;
        let Some(row) = row else { return Ok(None) };
        let data: HashMap<String, serde_json::Value> =
            serde_json::from_value(row.data).map_err(|e| Error::Decode(e.to_string()))?;
        let expiry_date = time::OffsetDateTime::from_unix_timestamp_nanos(
            row.expires_at.to_jiff().as_nanosecond(),
        )
        .map_err(backend)?;
        Ok(Some(Record {
            id: *id,
            data,
            expiry_date,
        }))
    }

    async fn delete(&self, id: &Id) -> Result<()> {
        sqlx::query!("delete from session where id = $1", id.to_string())
            .execute(&self.pool)
            .await
            .map_err(backend)?;
        Ok(())
    }
}

/// Removes what has expired.
///
/// # Errors
/// From Postgres.
pub async fn delete_expired(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query!("delete from session where expires_at < now()")
        .execute(pool)
        .await?;
    Ok(())
}
