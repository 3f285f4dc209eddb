//! The face and the words of svcforge: compiles to wasm and to the server. No tokio, sqlx or kube.
#![recursion_limit = "256"]

pub mod api;
pub mod domain;
pub mod live;
pub mod pages;
#[cfg(feature = "ssr")]
pub mod port;
pub mod routes;
pub mod shell;
pub mod ui;

pub use routes::App;
#[cfg(feature = "ssr")]
pub use shell::shell;
