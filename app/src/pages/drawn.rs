//! Pages that the server draws whole and the browser only shows: nothing on them reacts but their forms, which need no JavaScript.
//! They cost the browser's bundle nothing.

use super::FormFlash;
use crate::{
    api,
    live::Live,
    ui::{Title, Trouble},
};
use leptos::prelude::*;
use leptos_router::hooks::use_params_map;

/// Whether somebody is typing in a form of this page: what they typed must not be drawn over. `start.js` marks the form.
fn typing() -> bool {
    #[cfg(feature = "hydrate")]
    return document()
        .query_selector("main form[data-typed]")
        .is_ok_and(|f| f.is_some());
    #[cfg(not(feature = "hydrate"))]
    false
}

/// Such a page, live: drawn again when a topic of `topics` changes.
#[component]
fn Drawn(
    /// Which one.
    #[prop(into)]
    name: Signal<String>,
    /// Its title.
    title: &'static str,
    /// Prefixes of what it shows.
    topics: [&'static str; 3],
) -> impl IntoView {
    let page = Resource::new(move || name.get(), api::drawn);
    let flash = SharedValue::new(|| use_context::<FormFlash>().unwrap_or_default()).into_inner();
    expect_context::<Live>().on_change(
        move |what| topics.iter().any(|t| what.starts_with(t)),
        move || {
            if !typing() {
                page.refetch();
            }
        },
    );
    view! {
        <Title text=title/>
        <header class="page-head"><h1>{title}</h1></header>
        <p class="sub stands-still">"This page stands still while you type in it."</p>
        {flash.problem.filter(|_| flash.html.is_none()).map(|p| view! { <div class="banner bad" role="alert">{p.sentence()}</div> })}
        {flash.html.clone().map(|html| view! { <div class="stack" inner_html=html></div> })}
        {flash.html.is_none().then(|| view! { <Transition fallback=|| ()>
            {move || Suspend::new(async move {
                match page.await {
                    Err(problem) => view! { <Trouble problem/> }.into_any(),
                    Ok(html) => view! { <div class="stack" inner_html=html></div> }.into_any(),
                }
            })}
        </Transition> })}
    }
    .into_any()
}

/// The settings of a service, to be changed.
#[component]
pub fn ChangePage() -> impl IntoView {
    let params = use_params_map();
    let name =
        Signal::derive(move || format!("change/{}", params.get().get("id").unwrap_or_default()));
    view! { <Drawn name title="Change settings" topics=["reset", "reset", "reset"]/> }
}

/// What moves to which version, what is halted and why, who waits for what.
#[component]
pub fn RolloutsPage() -> impl IntoView {
    view! { <Drawn name="rollouts".to_owned() title="Rollouts" topics=["rollout:", "instance:", "catalog:"]/> }
}

/// What is not as it was installed, releases nobody knows, and the brake on repairs.
#[component]
pub fn DriftPage() -> impl IntoView {
    view! { <Drawn name="drift".to_owned() title="Drift" topics=["drift:", "instance:", "rollout:"]/> }
}

/// Workflows and ServiceDefinitions, as the controller sees them.
#[component]
pub fn WorkflowsPage() -> impl IntoView {
    view! { <Drawn name="workflows".to_owned() title="Workflows" topics=["definition:", "reset", "reset"]/> }
}

/// Draws a view to HTML, on the server.
#[cfg(feature = "ssr")]
pub fn draw<V: IntoView + 'static>(view: impl FnOnce() -> V) -> String {
    Owner::new().with(|| {
        crate::live::provide_live();
        view().into_view().to_html()
    })
}
