//! Ports nobody uses, so that two runs side by side never collide.

use std::net::{Ipv4Addr, TcpListener};

/// A free port of loopback.
///
/// # Errors
/// When there is none.
pub fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}
