//! Icons by name, from `public/icons`.

use leptos::prelude::*;

/// An icon that only decorates.
#[component]
pub fn Icon(
    /// File name without `.svg`.
    name: String,
) -> impl IntoView {
    // A name from the catalog becomes part of a path.
    let safe = name
        .chars()
        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !name.is_empty();
    let file = if safe { name } else { "box".into() };
    view! { <img class="icon" src=format!("/icons/{file}.svg") alt="" width="28" height="28"/> }
}
