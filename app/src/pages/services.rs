//! The list of services. Filters live in the URL; a plain form sets them.

use super::InstanceQuery;
use crate::{
    api,
    domain::{Instance, instance::STATES},
    live::Live,
    ui::{Badge, Moment, Title, Trouble},
};
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;

/// Services, newest first.
#[component]
pub fn ServicesPage() -> impl IntoView {
    let map = use_query_map();
    let query = Memo::new(move |_| {
        let map = map.get();
        let text = |name: &str| map.get(name).filter(|v| !v.is_empty());
        InstanceQuery {
            team: text("team"),
            service_type: text("type"),
            state: text("state"),
            drift: text("drift"),
            q: text("q"),
            cursor: text("cursor"),
        }
    });
    let page = Resource::new(move || query.get(), api::instances);
    expect_context::<Live>()
        .on_change(|what| what.starts_with("instance:"), move || page.refetch());
    view! {
        <Title text="Services"/>
        <header class="page-head">
            <h1>"Services"</h1>
            <a class="button primary" href="/catalog">"Request a service"</a>
        </header>
        <Filters query/>
        <Transition fallback=|| ()>
            {move || Suspend::new(async move {
                match page.await {
                    Err(problem) => view! { <Trouble problem/> }.into_any(),
                    Ok(found) => view! { <List items=found.items next=found.next_cursor query=query.get_untracked()/> }.into_any(),
                }
            })}
        </Transition>
    }
}

#[component]
fn Filters(query: Memo<InstanceQuery>) -> impl IntoView {
    let q = query.get_untracked();
    let chosen = q.state.clone().unwrap_or_default();
    view! {
        <form class="filters" method="get" action="/services" role="search">
            <label class="grow">
                <span class="visually-hidden">"Name contains"</span>
                <input type="search" name="q" placeholder="Name" value=q.q.unwrap_or_default()/>
            </label>
            <label>
                <span class="visually-hidden">"State"</span>
                <select name="state">
                    <option value="">"Any state"</option>
                    {STATES.map(|s| view! { <option value=s.as_str() selected=chosen == s.as_str()>{s.as_str()}</option> }).collect_view()}
                </select>
            </label>
            {q.service_type.map(|t| view! { <input type="hidden" name="type" value=t/> })}
            {q.drift.map(|d| view! { <input type="hidden" name="drift" value=d/> })}
            {q.team.map(|team| view! { <input type="hidden" name="team" value=team/> })}
            <button class="button" type="submit">"Filter"</button>
        </form>
    }
    .into_any()
}

#[component]
fn List(items: Vec<Instance>, next: Option<String>, query: InstanceQuery) -> impl IntoView {
    if items.is_empty() {
        let filtered = query != InstanceQuery::default();
        return if filtered {
            view! { <section class="empty"><h2>"No match"</h2><p>"No service matches these filters."</p><a class="button" href="/services">"Clear the filters"</a></section> }.into_any()
        } else {
            view! { <section class="empty"><h2>"No services yet"</h2><p>"Pick one from the catalog; it takes a minute."</p><a class="button primary" href="/catalog">"Open the catalog"</a></section> }.into_any()
        };
    }
    let newest = query.cursor.is_some().then(
        || view! { <p class="more"><a class="button" href="/services">"Newest services"</a></p> },
    );
    let next = next.map(|cursor| {
        let mut href = format!("/services?cursor={cursor}");
        for (name, value) in [
            ("q", query.q),
            ("state", query.state),
            ("drift", query.drift),
            ("team", query.team),
            ("type", query.service_type),
        ] {
            if let Some(value) = value {
                href.push_str(&format!("&{name}={}", escape(&value)));
            }
        }
        view! { <p class="more"><a class="button" href=href rel="next">"Older services"</a></p> }
    });
    view! {
        <table class="list">
            <thead><tr><th scope="col">"Service"</th><th scope="col">"State"</th><th scope="col">"Team"</th><th scope="col">"Version"</th><th scope="col">"Asked"</th></tr></thead>
            <tbody>{items.into_iter().map(|instance| view! { <Row instance/> }).collect_view()}</tbody>
        </table>
        {newest}
        {next}
    }
    .into_any()
}

#[component]
fn Row(instance: Instance) -> impl IntoView {
    let href = format!("/services/{}", instance.id);
    view! {
        <tr>
            <td class="main"><a href=href>{instance.name.clone()}</a><span class="sub">{instance.service_type.clone()}</span></td>
            <td><Badge word=instance.badge()/><span class="sub sentence">{instance.headline()}</span></td>
            <td data-label="Team">{instance.team}</td>
            <td data-label="Version">{instance.chart_version}</td>
            <td data-label="Asked"><Moment at=instance.created_at/></td>
        </tr>
    }
    .into_any()
}

/// Percent-encodes what is not unreserved.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(b).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}
