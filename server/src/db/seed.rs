//! Instances to look at, for a simulated cluster only.

use sqlx::PgPool;

/// Makes `count` instances in made-up states, over the current catalog and ten teams. Returns how many.
///
/// # Errors
/// When the database is bound to a cluster (its reconciler would try to make them real), or has no catalog.
pub async fn instances(pool: &PgPool, count: i64) -> anyhow::Result<u64> {
    let mut tx = pool.begin().await?;
    let bound = sqlx::query_scalar!(
        r#"select coalesce(cluster_uid, '') not in ('', 'simulated') as "bound!" from installation"#
    )
    .fetch_optional(&mut *tx)
    .await?;
    anyhow::ensure!(
        bound != Some(true),
        "this database is bound to a cluster; seed only a simulated one (`svcforge up --cluster simulated`)"
    );
    sqlx::query!(
        "insert into team (id, slug, title, namespace)
         select gen_random_uuid(), 'team-' || n, 'Team ' || n, 'svcf-team-' || n from generate_series(1, 10) n on conflict do nothing"
    )
    .execute(&mut *tx)
    .await?;
    let made = sqlx::query!(
        "insert into instance (id, team_id, service_type, kind, name, state, entry_revision_id, release_name, release_namespace, parameters, created_by, created_at)
         select s.id, t.id, r.service_type, r.kind, 'seed-' || left(s.id::text, 8) || '-' || s.n, (array['ready','ready','ready','ready','failed','provisioning'])[1 + s.n % 6],
                r.id, 'seed-' || s.id, t.namespace, '{}', 'seed', now() - s.n * interval '1 minute'
         from (select n, gen_random_uuid() as id from generate_series(1, $1::bigint) n) s
         join lateral (select t.id, t.namespace from team t order by t.slug offset (s.n % 10) limit 1) t on true
         join lateral (select e.* from catalog_item i join entry_revision e on e.id = i.entry_revision_id
                       where i.catalog_revision_id = (select max(id) from catalog_revision)
                       order by e.service_type offset (s.n % (select count(*) from catalog_item where catalog_revision_id = (select max(id) from catalog_revision))) limit 1) r on true",
        count
    )
    .execute(&mut *tx)
    .await?
    .rows_affected();
    anyhow::ensure!(made > 0 || count == 0, "the database has no catalog yet");
    tx.commit().await?;
    Ok(made)
}
