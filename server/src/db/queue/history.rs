//! The history's partitions.

use sqlx::PgPool;

/// Makes the history's partitions for this month and two ahead. What stands in the default one meanwhile moves where it belongs: its
/// rows would forbid the month for good.
///
/// # Errors
/// From Postgres.
pub async fn ensure_partitions(pool: &PgPool) -> sqlx::Result<()> {
    let months = sqlx::query!(
        r#"select to_char(m, 'YYYY_MM') as "name!", to_char(m, 'YYYY-MM-DD') as "from!", to_char(m + interval '1 month', 'YYYY-MM-DD') as "to!"
           from generate_series(date_trunc('month', now() at time zone 'UTC'), date_trunc('month', now() at time zone 'UTC') + interval '2 months', interval '1 month') m
           where to_regclass('task_history_' || to_char(m, 'YYYY_MM')) is null"#
    )
    .fetch_all(pool)
    .await?;
    for month in months {
        let (name, from, to) = (month.name, month.from, month.to);
        let ddl = format!(
            "lock table task_history_default in access exclusive mode;
             create table if not exists task_history_{name} (like task_history including defaults including constraints);
             with moved as (delete from task_history_default where finished_at >= '{from} 00:00+00' and finished_at < '{to} 00:00+00' returning *)
             insert into task_history_{name} select * from moved;
             alter table task_history attach partition task_history_{name} for values from ('{from} 00:00+00') to ('{to} 00:00+00')"
        );
        // One after another whoever else does the same: who comes second finds it made.
        let mut tx = pool.begin().await?;
        sqlx::query("lock table task_history in share update exclusive mode")
            .execute(&mut *tx)
            .await?;
        let made = sqlx::query_scalar!(
            r#"select to_regclass('task_history_' || $1) is not null as "made!""#,
            name
        )
        .fetch_one(&mut *tx)
        .await?;
        if !made {
            sqlx::raw_sql(sqlx::AssertSqlSafe(ddl))
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// Drops the history's partitions that ended before the last `months` months, and what the logs and steps of their tasks kept.
///
/// # Errors
/// From Postgres.
pub async fn drop_old_partitions(pool: &PgPool, months: i32) -> sqlx::Result<()> {
    let old = sqlx::query_scalar!(
        r#"select c.relname as "name!" from pg_inherits i join pg_class c on c.oid = i.inhrelid
           where i.inhparent = 'task_history'::regclass and c.relname ~ '^task_history_[0-9]{4}_[0-9]{2}$'
             and right(c.relname, 7) < to_char(now() at time zone 'UTC' - make_interval(months => $1), 'YYYY_MM')"#,
        months
    )
    .fetch_all(pool)
    .await?;
    for name in old {
        for kept in ["task_step", "task_log"] {
            let sql = format!("delete from {kept} where task_id in (select id from {name})");
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await?;
        }
        sqlx::query(sqlx::AssertSqlSafe(format!("drop table {name}")))
            .execute(pool)
            .await?;
    }
    Ok(())
}
