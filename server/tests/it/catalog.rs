//! The catalog: what ships is valid, faults are named with file and line, a bad edit keeps the last good one.

use crate::support::{TestApp, TestDb, app::shipped};
use std::{fs, path::Path};
use svcforge::{catalog, changes::Changes, db};

fn write(dir: &Path, entry: &str) {
    fs::create_dir_all(dir.join("x/chart/templates")).unwrap();
    fs::write(dir.join("x/entry.yaml"), entry).unwrap();
    fs::write(
        dir.join("x/chart/Chart.yaml"),
        "apiVersion: v2\nname: x\nversion: 1.0.0\n",
    )
    .unwrap();
    fs::write(
        dir.join("x/chart/values.yaml"),
        "size: 1\nimage: {tag: x}\n",
    )
    .unwrap();
}

const GOOD: &str = "type: x\nkind: helm\ntitle: X\nsummary: s\nchart: chart\nchart_version: 1.0.0\nvalues: {image: {tag: v1}}\n\
parameters:\n  type: object\n  additionalProperties: false\n  properties:\n    size: {type: integer, minimum: 1, maximum: 9}\nmapping: {size: size}\n";

#[test]
fn what_ships_is_valid_and_packs_the_same_every_time() {
    let (one, two) = (
        catalog::load(&shipped()).unwrap(),
        catalog::load(&shipped()).unwrap(),
    );
    assert_eq!(one.len(), 4);
    for (a, b) in one.iter().zip(&two) {
        assert_eq!(a.digest, b.digest, "{}", a.entry.service_type);
    }
}

#[test]
fn faults_are_named_with_file_and_line() {
    for (edit, line, words) in [
        (("type: x\n", "type: X!\n"), 1, "may contain only"),
        (("kind: helm", "kind: hulm"), 2, "hulm"),
        (("title: X", "titel: X"), 3, "titel"),
        (("chart: chart", "chart: ../chart"), 5, "folder beside"),
        (("chart: chart", "chart: nowhere"), 0, "cannot be read"),
        (
            ("chart_version: 1.0.0", "chart_version: one"),
            6,
            "semantic version",
        ),
        (
            ("chart_version: 1.0.0", "chart_version: 1.0.1"),
            3,
            "says version 1.0.0",
        ),
        (("maximum: 9", "maximum: 99999999999999999"), 12, "2^53"),
        (("type: integer", "type: number"), 12, "float"),
        (
            ("{size: size}", "{size: sise}"),
            13,
            "values.yaml does not have",
        ),
        (
            ("minimum: 1, ", "minimum: 1, default: 12, "),
            12,
            "refused by its own property",
        ),
        (("{size: size}", "{size: image.tag}"), 13, "locked"),
        (("{size: size}", "{other: size}"), 12, "no mapping"),
        (
            ("additionalProperties: false", "additionalProperties: true"),
            10,
            "must be false",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &GOOD.replace(edit.0, edit.1));
        let faults = catalog::load(dir.path()).expect_err(edit.1);
        let text = faults[0].to_string();
        assert!(text.contains(words), "{edit:?}: {text}");
        assert_eq!(faults[0].line, line, "{edit:?}: {text}");
    }
}

/// A ServiceDefinition takes nothing but its own fields: what else an entry says would be dropped without a word.
#[test]
fn a_definition_of_unknown_fields_is_refused_with_file_and_line() {
    let good = "type: d\nkind: service_definition\ntitle: D\nsummary: s\nchart_version: 1.0.0\ndefinition: {replicas: 1}\n\
parameters:\n  type: object\n  additionalProperties: false\n  properties:\n    image: {type: string}\nmapping:\n  image: image\n";
    let load = |text: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/entry.yaml"), text).unwrap();
        catalog::load(dir.path())
    };
    assert!(load(good).is_ok());
    assert!(load(&good.replace("image: image", "image: env.IMAGE")).is_ok());
    for (edit, line, words) in [
        (
            ("replicas: 1", "replica: 1"),
            6,
            "no replica to set; its fields are description, image",
        ),
        (
            ("replicas: 1", "replicas: many"),
            6,
            "is no ServiceDefinition's spec",
        ),
        (("image: image", "image: memory"), 13, "memory is no field"),
        (
            ("image: image", "image: image.tag"),
            13,
            "image.tag is no field",
        ),
        (("image: image", "image: owner"), 13, "owner is no field"),
        (
            ("mapping:", "credentials: [{name: p, length: 20}]\nmapping:"),
            12,
            "takes no Secret",
        ),
    ] {
        let faults = load(&good.replace(edit.0, edit.1)).expect_err(edit.1);
        let text = faults[0].to_string();
        assert!(text.contains(words), "{edit:?}: {text}");
        assert_eq!(faults[0].line, line, "{edit:?}: {text}");
    }
}

#[test]
fn bombs_links_and_doubles_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut bomb = String::from(
        "type: x\nkind: helm\ntitle: X\nsummary: s\nchart_version: 1.0.0\nvalues:\n  a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n",
    );
    for n in 1..12 {
        bomb.push_str(&format!(
            "  a{n}: &a{n} [{}]\n",
            vec![format!("*a{}", n - 1); 10].join(",")
        ));
    }
    write(dir.path(), &bomb);
    let began = std::time::Instant::now();
    assert!(catalog::load(dir.path()).is_err());
    assert!(
        began.elapsed().as_secs() < 20,
        "an alias bomb must be cheap to refuse"
    );

    write(dir.path(), &GOOD.replace("title: X", "title: X\ntitle: Y"));
    assert!(
        catalog::load(dir.path()).unwrap_err()[0]
            .detail
            .contains("duplicate"),
        "duplicate keys"
    );

    write(dir.path(), GOOD);
    std::os::unix::fs::symlink(
        "/etc/passwd",
        dir.path().join("x/chart/templates/link.yaml"),
    )
    .unwrap();
    assert!(
        catalog::load(dir.path()).unwrap_err()[0]
            .detail
            .contains("symbolic link")
    );
    fs::remove_file(dir.path().join("x/chart/templates/link.yaml")).unwrap();

    let mut x = 88_172_645_463_325_252u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    })
    .take(2_000_000)
    .collect();
    fs::write(dir.path().join("x/chart/big.bin"), noise).unwrap();
    assert!(
        catalog::load(dir.path()).unwrap_err()[0]
            .detail
            .contains("packed")
    );
}

#[tokio::test]
async fn changed_content_under_an_unchanged_version_is_refused() {
    let db = TestDb::new().await;
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), GOOD);
    assert!(
        catalog::publish(&db.pool, &catalog::load(dir.path()).unwrap())
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        catalog::publish(&db.pool, &catalog::load(dir.path()).unwrap())
            .await
            .unwrap(),
        None,
        "the same again is nothing"
    );
    fs::write(
        dir.path().join("x/chart/templates/a.yaml"),
        "kind: ConfigMap\n",
    )
    .unwrap();
    let error = catalog::publish(&db.pool, &catalog::load(dir.path()).unwrap())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("raise chart_version"), "{error}");
}

#[tokio::test]
async fn a_bad_edit_keeps_the_last_good_catalog_and_is_shown() {
    let db = TestDb::new().await;
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), GOOD);
    let stop = tokio_util::sync::CancellationToken::new();
    let watching = tokio::spawn(catalog::watch(
        db.pool.clone(),
        dir.path().into(),
        Changes::start(db.pool.clone()),
        Default::default(),
        None,
        stop.clone(),
    ));
    let until = |what: &'static str, good: bool| {
        let pool = db.pool.clone();
        async move {
            for _ in 0..200 {
                let fault = db::catalog::fault(&pool).await.unwrap();
                if db::catalog::is_published(&pool).await.unwrap() && fault.is_none() == good {
                    return fault;
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            panic!("never {what}");
        }
    };
    until("published", true).await;
    write(dir.path(), &GOOD.replace("kind: helm", "kind: hulm"));
    let fault = until("faulty", false).await.unwrap();
    assert!(fault.contains("entry.yaml:2"), "{fault}");
    assert_eq!(
        db::catalog::list_current(&db.pool).await.unwrap().len(),
        1,
        "the last good one serves"
    );
    write(dir.path(), GOOD);
    until("mended", true).await;
    stop.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn an_entry_that_left_the_catalog_can_still_be_seen_and_removed() {
    let app = TestApp::new().await;
    let member = app.client("member");
    let id = member.ask("cache", "old", serde_json::json!({})).await;
    let rest: Vec<_> = catalog::load(&shipped())
        .unwrap()
        .into_iter()
        .filter(|p| p.entry.service_type != "cache")
        .collect();
    catalog::publish(&app.db.pool, &rest).await.unwrap();
    app.scripted(std::time::Duration::from_millis(5));
    let seen = app.wait(&id, &["ready"]).await;
    assert_eq!(seen["target_version"], serde_json::Value::Null);
    assert_eq!(
        member.delete(&format!("/api/v1/instances/{id}")).await.0,
        202
    );
    app.wait(&id, &["deleted"]).await;
}
