//! What may be asked for.

use crate::{
    api,
    domain::CatalogEntry,
    live::Live,
    ui::{Icon, Title, Trouble},
};
use leptos::prelude::*;

/// The catalog, a card an entry.
#[component]
pub fn CatalogPage() -> impl IntoView {
    let catalog = Resource::new(|| (), |()| api::catalog());
    expect_context::<Live>().on_change(
        |what| what.starts_with("catalog:"),
        move || catalog.refetch(),
    );
    view! {
        <Title text="Catalog"/>
        <header class="page-head"><h1>"Catalog"</h1></header>
        <Transition fallback=|| ()>
            {move || Suspend::new(async move {
                match catalog.await {
                    Err(problem) => view! { <Trouble problem/> }.into_any(),
                    Ok(view) => {
                        let empty = view.items.is_empty();
                        view! {
                            {view.fault.map(|fault| view! {
                                <div class="banner warn" role="alert">
                                    <strong>"The newest edit of the catalog is not served."</strong>
                                    <pre>{fault}</pre>
                                </div>
                            })}
                            {empty.then(|| view! { <p class="empty">"Nothing is on offer yet. An admin publishes the catalog."</p> })}
                            <ul class="cards">
                                {view.items.into_iter().map(|entry| view! { <EntryCard entry/> }).collect_view()}
                            </ul>
                        }.into_any()
                    }
                }
            })}
        </Transition>
    }
}

#[component]
fn EntryCard(entry: CatalogEntry) -> impl IntoView {
    let href = format!("/request/{}", entry.service_type);
    view! {
        <li class="card entry">
            <div class="entry-head">
                <Icon name=entry.icon/>
                <h2>{entry.title.clone()}</h2>
                <span class="version">{entry.chart_version}</span>
            </div>
            <p>{entry.summary}</p>
            <a class="button primary" href=href aria-label=format!("Request {}", entry.title)>"Request"</a>
        </li>
    }
    .into_any()
}
