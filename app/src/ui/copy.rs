//! A button that copies exact text and says so. Without JavaScript it is not shown: the text can be selected.

use leptos::prelude::*;

/// The button.
#[component]
pub fn CopyButton(
    /// What to copy.
    text: String,
    /// What it is, for the label.
    what: String,
) -> impl IntoView {
    let copied = RwSignal::new(false);
    let live = expect_context::<crate::live::Live>();
    let on_click = move |_| {
        #[cfg(feature = "hydrate")]
        if let Some(window) = web_sys::window() {
            let _ = window.navigator().clipboard().write_text(&text);
            copied.set(true);
            set_timeout(
                move || {
                    copied.try_set(false);
                },
                std::time::Duration::from_secs(2),
            );
        }
        #[cfg(not(feature = "hydrate"))]
        let _ = &text;
    };
    view! {
        <button class="button quiet copy" type="button" hidden=move || live.now.get().is_none() aria-label=format!("Copy {what}") on:click=on_click>
            <span aria-live="polite">{move || if copied.get() { "Copied" } else { "Copy" }}</span>
        </button>
    }
}
