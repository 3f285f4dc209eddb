//! The checks of contract §2.3, with scripted releases and a real Postgres: each line of it that can be seen without a cluster.

mod apart;
mod drift;
mod ttl;

use crate::support::{
    TestApp,
    reconciler::{Made, Reconciler, events, seen},
};
use serde_json::json;
use svcforge::{cluster::Listing, provision::Fault};
use uuid::Uuid;

fn outage() -> Fault {
    Fault::Outage {
        what: "the Kubernetes API".into(),
        error: "500".into(),
    }
}

async fn fleet(app: &TestApp, r: &Reconciler, n: usize) -> Vec<Made> {
    let mut made = vec![];
    for i in 0..n {
        let one = app.make_ready("demo", &format!("s{i}"), None).await;
        r.releases
            .put(&one.namespace, &one.release, seen(1, Some("me")));
        made.push(one);
    }
    made
}
