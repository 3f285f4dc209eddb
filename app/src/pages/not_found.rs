//! No such page.

use leptos::prelude::*;

/// 404, with a way on.
#[component]
pub fn NotFoundPage() -> impl IntoView {
    #[cfg(feature = "ssr")]
    if let Some(response) = use_context::<leptos_axum::ResponseOptions>() {
        response.set_status(http::StatusCode::NOT_FOUND);
    }
    view! {
        <crate::ui::Title text="Not here"/>
        <section class="empty">
            <h1>"Not here"</h1>
            <p>"There is no such page, or it is not yours to see."</p>
            <a class="button" href="/services">"All services"</a>
        </section>
    }
}
