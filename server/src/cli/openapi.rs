//! `svcforge openapi`.

pub fn run() -> anyhow::Result<()> {
    let (_, document) = crate::http::v1::router();
    super::say(document.to_pretty_json()?);
    Ok(())
}
