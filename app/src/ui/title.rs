//! The document's title.

use leptos::prelude::*;

/// Sets it.
#[component]
pub fn Title(
    /// What the page is.
    #[prop(into)]
    text: String,
) -> impl IntoView {
    view! { <leptos_meta::Title text=format!("{text} · svcforge")/> }
}
