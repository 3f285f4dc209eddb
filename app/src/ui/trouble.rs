//! A problem in place of a page's content.

use crate::domain::Problem;
use leptos::prelude::*;

/// What is wrong, in words, with a way on.
#[component]
pub fn Trouble(
    /// What is wrong.
    problem: Problem,
) -> impl IntoView {
    let signin = problem.status == 401;
    view! {
        <section class="empty" role="alert">
            <h1>{problem.title}</h1>
            <p>{problem.detail}</p>
            {problem.request_id.map(|id| view! { <p class="sub">"Request "<code>{id}</code></p> })}
            {if signin {
                view! { <a class="button" href="/signin">"Sign in"</a> }.into_any()
            } else {
                view! { <a class="button" href="/services">"All services"</a> }.into_any()
            }}
        </section>
    }
    .into_any()
}
