//! The HTML document. The hydration tags are written here by hand: Leptos' own put the nonce into `crossorigin`, which makes
//! Firefox abort the fetch (leptos#4843).

#[cfg(feature = "ssr")]
use crate::routes::App;
#[cfg(feature = "ssr")]
use leptos::prelude::*;
#[cfg(feature = "ssr")]
use leptos_meta::MetaTags;

/// The document around the application. Also says what the page may load.
#[cfg(feature = "ssr")]
pub fn shell() -> impl IntoView {
    let nonce = leptos::nonce::use_nonce()
        .map(|n| n.to_string())
        .unwrap_or_default();
    if let (Some(response), Ok(policy)) = (
        use_context::<leptos_axum::ResponseOptions>(),
        policy(&nonce).parse(),
    ) {
        response.insert_header(http::header::CONTENT_SECURITY_POLICY, policy);
    }
    view! {
        <!DOCTYPE html>
        <html lang="en">
            <head>
                <meta charset="utf-8"/>
                <meta name="viewport" content="width=device-width, initial-scale=1"/>
                <meta name="color-scheme" content="light dark"/>
                <link rel="icon" href="/icons/logo.svg"/>
                <link rel="stylesheet" href="/style/site.css"/>
                <link rel="modulepreload" href="/pkg/svcforge.js"/>
                <link rel="preload" href="/pkg/svcforge_bg.wasm" r#as="fetch" r#type="application/wasm" crossorigin="anonymous"/>
                <script type="module" src="/start.js"></script>
                <MetaTags/>
            </head>
            <body>
                <App/>
            </body>
        </html>
    }
}

#[cfg(feature = "ssr")]
fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
}
