//! The accept loop: a header deadline and a connection cap, and a stop that ends streams first.

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use std::{sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// Most connections at once.
const MAX_CONNECTIONS: usize = 2048;
/// Longest time for a request's head to arrive.
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
/// How long a stop waits for open requests.
const GRACE: Duration = Duration::from_secs(8);

/// Serves until told to stop; then no new connection, and open requests get their time.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    // HTTP/1.1 only, as it comes without TLS: while the version is being told, no deadline runs.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = async {
                let slot = slots.clone().acquire_owned().await;
                (listener.accept().await, slot)
            } => accepted,
        };
        let (Ok((stream, _)), Ok(slot)) = accepted else {
            // Out of file handles, say: do not spin.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = builder
            .serve_connection(TokioIo::new(stream), service)
            .into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            let _ = connection.await;
            drop(slot);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(GRACE, graceful.shutdown()).await;
}
