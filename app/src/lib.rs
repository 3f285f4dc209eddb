//! The face and the words of svcforge: compiles to wasm and to the server. No tokio, sqlx or kube.
pub mod domain;
