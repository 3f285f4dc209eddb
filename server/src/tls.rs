//! One TLS provider for the whole process: ring, the one that everything here is built with.

/// Makes it the default; further calls change nothing.
pub fn install() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
