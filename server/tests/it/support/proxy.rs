//! Faults on the way: a TCP proxy (before Postgres), and a TLS proxy that speaks HTTP (before the API server).

use axum::{body::Body, extract::Request, response::Response};
use futures::StreamExt;
use http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What a TCP proxy does to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Passes them.
    Pass,
    /// Closes connections, and refuses new ones.
    Cut,
    /// Keeps connections, passes nothing.
    Silent,
}

/// A proxy before a TCP server.
pub struct TcpProxy {
    pub address: SocketAddr,
    wire: watch::Sender<Wire>,
}

impl TcpProxy {
    pub async fn before(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (wire, rx) = watch::channel(Wire::Pass);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, target, rx.clone()));
            }
        });
        Self { address, wire }
    }

    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

async fn reaches(wire: &mut watch::Receiver<Wire>, holds: impl Fn(Wire) -> bool) {
    let _ = wire.wait_for(|w| holds(*w)).await;
}

async fn carry(mut client: TcpStream, target: SocketAddr, wire: watch::Receiver<Wire>) {
    if *wire.borrow() == Wire::Cut {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    let mut cut = wire.clone();
    let (mut a, mut b) = ([0u8; 16384], [0u8; 16384]);
    loop {
        let mut pass = wire.clone();
        let sent = tokio::select! {
            () = reaches(&mut cut, |w| w == Wire::Cut) => return,
            n = client.read(&mut a) => match n {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    reaches(&mut pass, |w| w != Wire::Silent).await;
                    server.write_all(&a[..n]).await
                }
            },
            n = server.read(&mut b) => match n {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    reaches(&mut pass, |w| w != Wire::Silent).await;
                    client.write_all(&b[..n]).await
                }
            },
        };
        if sent.is_err() {
            return;
        }
    }
}

/// What the HTTP proxy does to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// Passes them.
    Pass,
    /// Answers all with that status.
    Status(u16),
    /// Ends every connection without an answer.
    Down,
    /// Answers lists with half of a body, then ends the connection.
    Broken,
    /// Answers nothing, ever.
    Silent,
    /// Answers lists with no items.
    Lie,
    /// Answers lists with 410 Gone.
    Gone,
}

/// A TLS proxy before an API server.
pub struct HttpProxy {
    /// For clients: the proxy's address and its own authority.
    pub kubeconfig: PathBuf,
    mode: Arc<Mutex<Http>>,
    /// Counts changes of the mode: each cuts the answers that are still running.
    epoch: tokio::sync::watch::Sender<u64>,
    /// Watches of this resource show nothing any more, and know nothing of it.
    frozen: Arc<Mutex<Option<&'static str>>>,
    /// Paths of what was written.
    writes: Arc<Mutex<Vec<String>>>,
    pub requests: Arc<AtomicU64>,
    /// Patches of a status among them.
    pub status_patches: Arc<AtomicU64>,
    _dir: tempfile::TempDir,
}

impl HttpProxy {
    /// Before the API server of that kubeconfig.
    pub async fn before(kubeconfig: &Path) -> Self {
        svcforge::tls::install();
        let original: serde_json::Value =
            serde_saphyr::from_str(&std::fs::read_to_string(kubeconfig).unwrap()).unwrap();
        let cluster = &original["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().unwrap().to_owned();
        let authority = cluster["certificate-authority-data"]
            .as_str()
            .map(|d| data_encoding::BASE64.decode(d.as_bytes()).unwrap())
            .unwrap_or_else(|| {
                std::fs::read(cluster["certificate-authority"].as_str().unwrap()).unwrap()
            });
        let upstream = reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(&authority).unwrap()])
            .build()
            .unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, requests) = (
            Arc::new(Mutex::new(Http::Pass)),
            Arc::new(AtomicU64::new(0)),
        );
        let epoch = tokio::sync::watch::Sender::new(0);
        let status_patches = Arc::new(AtomicU64::new(0));
        let (frozen, writes) = (Arc::default(), Arc::<Mutex<Vec<String>>>::default());
        let state = (
            mode.clone(),
            requests.clone(),
            epoch.clone(),
            status_patches.clone(),
            Arc::clone(&frozen),
            writes.clone(),
        );
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, upstream, server, state) = (
                    acceptor.clone(),
                    upstream.clone(),
                    server.clone(),
                    state.clone(),
                );
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else {
                        return;
                    };
                    let service = hyper::service::service_fn(
                        move |request: hyper::Request<hyper::body::Incoming>| {
                            let (
                                upstream,
                                server,
                                (mode, requests, epoch, patches, frozen, writes),
                            ) = (upstream.clone(), server.clone(), state.clone());
                            async move {
                                requests.fetch_add(1, Ordering::Relaxed);
                                if request.method() == http::Method::PATCH
                                    && request.uri().path().ends_with("/status")
                                {
                                    patches.fetch_add(1, Ordering::Relaxed);
                                }
                                if request.method() != http::Method::GET {
                                    let mut writes =
                                        writes.lock().unwrap_or_else(PoisonError::into_inner);
                                    writes.push(request.uri().path().to_owned());
                                }
                                let epoch = epoch.subscribe();
                                let watched = request.uri().clone();
                                let mode = *mode.lock().unwrap_or_else(PoisonError::into_inner);
                                let answer =
                                    answer(mode, request.map(Body::new), &upstream, &server)
                                        .await?;
                                Ok::<_, Cut>(answer.map(|body| {
                                    let body = until_frozen(body, watched, frozen);
                                    until_changed(body, epoch)
                                }))
                            }
                        },
                    );
                    let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig.json");
        let mut proxied = original.clone();
        proxied["clusters"][0]["cluster"] = serde_json::json!({
            "server": format!("https://{address}"),
            "certificate-authority-data": data_encoding::BASE64.encode(made.cert.pem().as_bytes()),
        });
        std::fs::write(&path, proxied.to_string()).unwrap();
        Self {
            kubeconfig: path,
            mode,
            epoch,
            frozen,
            writes,
            requests,
            status_patches,
            _dir: dir,
        }
    }

    pub fn set(&self, mode: Http) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.epoch.send_modify(|n| *n += 1);
    }

    /// Paths of what was written so far.
    pub fn writes(&self) -> Vec<String> {
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.clone()
    }

    /// Leaves that resource's watches open and shows them nothing any more.
    pub fn freeze(&self, resource: &'static str) {
        *self.frozen.lock().unwrap_or_else(PoisonError::into_inner) = Some(resource);
    }
}

/// An error that ends the connection.
#[derive(Debug, thiserror::Error)]
#[error("cut by the test")]
pub struct Cut;

/// A body that is cut when the mode changes: a watch must not live through the fault that it is there for.
fn until_changed(body: Body, mut epoch: tokio::sync::watch::Receiver<u64>) -> Body {
    epoch.mark_unchanged();
    let cut = futures::stream::once(async move {
        let _ = epoch.changed().await;
        Err(std::io::Error::other("cut by the test"))
    });
    let frames = body
        .into_data_stream()
        .map(|r| r.map_err(std::io::Error::other));
    let ended = frames
        .map(Some)
        .chain(futures::stream::once(async { None }));
    let both = futures::stream::select(ended, cut.map(Some));
    Body::from_stream(
        both.take_while(|f| std::future::ready(f.is_some()))
            .filter_map(std::future::ready),
    )
}

/// A watch's body that stands still once its resource is frozen.
fn until_frozen(body: Body, of: http::Uri, frozen: Arc<Mutex<Option<&'static str>>>) -> Body {
    let is_watch = of.query().is_some_and(|q| q.contains("watch="));
    let frames = body.into_data_stream().then(move |frame| {
        let frozen = *frozen.lock().unwrap_or_else(PoisonError::into_inner);
        let stands = frozen.is_some_and(|f| is_watch && of.path().ends_with(f));
        async move {
            if stands {
                std::future::pending::<()>().await;
            }
            frame
        }
    });
    Body::from_stream(frames)
}

fn is_list(request: &Request) -> bool {
    request.method() == http::Method::GET
        && request.uri().query().is_some_and(|q| {
            q.contains("labelSelector") || q.contains("limit=") || q.contains("watch=")
        })
}

async fn answer(
    mode: Http,
    request: Request,
    upstream: &reqwest::Client,
    server: &str,
) -> Result<Response, Cut> {
    let json = |status: u16, body: String| {
        Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .body(Body::from(body))
            .map_err(|_| Cut)
    };
    match mode {
        Http::Pass => {}
        Http::Down => return Err(Cut),
        Http::Silent => std::future::pending().await,
        Http::Status(code) => {
            return json(
                code,
                format!(
                    "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"message\":\"by the test\",\"code\":{code}}}"
                ),
            );
        }
        Http::Gone if is_list(&request) => {
            return json(410, "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"status\":\"Failure\",\"reason\":\"Expired\",\"message\":\"too old\",\"code\":410}".into());
        }
        Http::Lie if is_list(&request) => {
            return json(200, "{\"kind\":\"PartialObjectMetadataList\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[]}".into());
        }
        Http::Broken if is_list(&request) => {
            let frames = futures::stream::iter([
                Ok("{\"kind\":\"PartialObjectMetadataList\",\"items\":[{\"meta"),
                Err(Cut),
            ]);
            return Response::builder()
                .status(StatusCode::OK)
                .header("content-type", "application/json")
                .body(Body::from_stream(frames))
                .map_err(|_| Cut);
        }
        Http::Gone | Http::Lie | Http::Broken => {}
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    let mut headers = parts.headers;
    headers.remove(http::header::HOST);
    let body = reqwest::Body::wrap_stream(body.into_data_stream());
    let sent = upstream
        .request(parts.method, format!("{server}{path}"))
        .headers(headers)
        .body(body)
        .send()
        .await
        .map_err(|_| Cut)?;
    let mut response = Response::builder().status(sent.status());
    for (name, value) in sent.headers() {
        if name != http::header::TRANSFER_ENCODING {
            response = response.header(name, value);
        }
    }
    response
        .body(Body::from_stream(
            sent.bytes_stream().map(|r| r.map_err(|_| Cut)),
        ))
        .map_err(|_| Cut)
}

/// Waits until something holds, or panics after that long.
pub async fn until(what: &str, at_most: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let end = std::time::Instant::now() + at_most;
    while !holds().await {
        assert!(
            std::time::Instant::now() < end,
            "not in {at_most:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
}
