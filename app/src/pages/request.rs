//! The request form, made from our own schema. A plain post: it works the same with and without JavaScript, and comes back
//! with what was typed and what is wrong beside each field.

use super::FormFlash;
use crate::{
    api,
    domain::{CatalogEntry, FormField, FormWidget, Team},
    ui::{Field, Icon, Lines, Title, Trouble},
};
use leptos::prelude::*;
use leptos_router::hooks::use_params_map;

/// The form of one entry.
#[component]
pub fn RequestPage() -> impl IntoView {
    let params = use_params_map();
    let service_type = Memo::new(move |_| params.get().get("type").unwrap_or_default());
    let entry = Resource::new(move || service_type.get(), api::entry);
    let teams = Resource::new(|| (), |()| api::teams());
    // What the post before came back with; drawn by the server, taken over by the browser.
    let flash = SharedValue::new(|| use_context::<FormFlash>().unwrap_or_default()).into_inner();
    view! {
        <Transition fallback=|| ()>
            {move || {
                let flash = flash.clone();
                Suspend::new(async move {
                    match (entry.await, teams.await) {
                        (Ok(entry), Ok(teams)) => view! { <RequestForm entry teams flash/> }.into_any(),
                        (Err(problem), _) | (_, Err(problem)) => view! { <Trouble problem/> }.into_any(),
                    }
                })
            }}
        </Transition>
    }
}

#[component]
fn RequestForm(entry: CatalogEntry, teams: Vec<Team>, flash: FormFlash) -> impl IntoView {
    let fields = entry.form();
    let (basic, more): (Vec<FormField>, Vec<FormField>) =
        fields.into_iter().partition(|f| f.basic || f.required);
    // Advanced fields must not hide an error.
    let open = more
        .iter()
        .any(|f| flash.error(&format!("/parameters/{}", f.name)).is_some());
    let only_team = (teams.len() == 1).then(|| teams[0].slug.clone());
    let chosen = flash.value("team").or(only_team).unwrap_or_default();
    let days = |seconds: i64| (seconds / 86_400).max(1);
    let ttl_help = match (entry.ttl.default_seconds, entry.ttl.max_seconds) {
        (Some(default), Some(max)) => format!(
            "Days until it is removed. {} when left empty, at most {}.",
            days(default),
            days(max)
        ),
        (Some(default), None) => format!(
            "Days until it is removed. {} when left empty.",
            days(default)
        ),
        (None, Some(max)) => format!(
            "Days until it is removed, at most {}. Left empty: never.",
            days(max)
        ),
        (None, None) => "Days until it is removed. Left empty: never.".into(),
    };
    let general = flash.problem.as_ref().map(|p| {
        let lead = if p.errors.is_empty() {
            p.detail.clone()
        } else {
            format!("{}: see below.", p.title)
        };
        view! { <div class="banner bad" role="alert" tabindex="-1" autofocus>{lead}</div> }
    });
    let fields_of = |fields: Vec<FormField>, flash: &FormFlash| {
        fields
            .into_iter()
            .map(|field| view! { <Parameter field flash=flash.clone()/> })
            .collect_view()
    };
    let more = (!more.is_empty()).then(|| {
        view! { <details class="advanced" open=open><summary>"More settings"</summary>{fields_of(more, &flash)}</details> }
    });
    let [team_error, name_error, ttl_error] =
        ["/team", "/name", "/ttl_seconds"].map(|pointer| flash.error(pointer));
    let [name_value, ttl_value] =
        ["name", "ttl_days"].map(|field| flash.value(field).unwrap_or_default());
    let key = flash.key.clone();
    let basic = fields_of(basic, &flash);
    view! {
        <Title text=format!("Request {}", entry.title)/>
        <header class="page-head">
            <h1><Icon name=entry.icon.clone()/>{format!("Request {}", entry.title)}</h1>
            <span class="version">{entry.chart_version.clone()}</span>
        </header>
        <div class="two-columns">
            <form class="card form" method="post" action=format!("/request/{}", entry.service_type) autocomplete="off">
                {general}
                <input type="hidden" name="key" value=key/>
                <Field label="Team" name="team" help="" error=team_error required=true>
                    <select id="team" name="team" required=true>
                        {(teams.len() != 1).then(|| view! { <option value="">"Choose a team"</option> })}
                        {teams.into_iter().map(|t| view! { <option value=t.slug.clone() selected=t.slug == chosen>{t.title}</option> }).collect_view()}
                    </select>
                </Field>
                <Field label="Name" name="name" help="Lower case letters, digits and dashes; unique in the team." error=name_error required=true>
                    <input id="name" name="name" type="text" required=true maxlength="40" pattern="[a-z]([a-z0-9\\-]*[a-z0-9])?" spellcheck="false" value=name_value aria-describedby="name-help name-error"/>
                </Field>
                {basic}
                <Field label="Lifetime" name="ttl_days" help=ttl_help error=ttl_error required=false>
                    <input id="ttl_days" name="ttl_days" type="number" min="1" inputmode="numeric" value=ttl_value aria-describedby="ttl_days-help ttl_days-error"/>
                </Field>
                {more}
                <div class="actions">
                    <button class="button primary" type="submit">"Request"</button>
                    <a class="button" href="/catalog">"Back"</a>
                </div>
            </form>
            <aside class="docs">
                <p>{entry.summary}</p>
                {entry.docs.split("\n\n").map(|p| view! { <p>{p.to_owned()}</p> }).collect_view()}
            </aside>
        </div>
    }
    .into_any()
}

/// One setting's field.
#[component]
pub(super) fn Parameter(
    /// The field.
    field: FormField,
    /// What was typed, and what is wrong.
    flash: FormFlash,
) -> impl IntoView {
    let id = format!("p.{}", field.name);
    let name = id.clone();
    let error = flash.error(&format!("/parameters/{}", field.name));
    let came_back = !flash.values.is_empty();
    let value = flash.value(&id).unwrap_or_else(|| {
        if came_back {
            String::new()
        } else {
            field.default.clone()
        }
    });
    let described = format!("{id}-help {id}-error");
    let required = field.required;
    let control = match field.widget {
        FormWidget::Text => view! { <input id=id.clone() name=name type="text" value=value required=required spellcheck="false" aria-describedby=described/> }.into_any(),
        FormWidget::Integer { min, max } => view! {
            <input id=id.clone() name=name type="number" inputmode="numeric" step="1" value=value min=min.map(|n| n.to_string()) max=max.map(|n| n.to_string()) required=required aria-describedby=described/>
        }.into_any(),
        FormWidget::Checkbox => view! { <input id=id.clone() name=name type="checkbox" value="true" checked=value == "true" aria-describedby=described/> }.into_any(),
        FormWidget::Select(options) => view! {
            <select id=id.clone() name=name required=required aria-describedby=described>
                {options.into_iter().map(|o| view! { <option value=o.clone() selected=o == value>{o.clone()}</option> }).collect_view()}
            </select>
        }.into_any(),
        FormWidget::Lines => view! { <Lines id=id.clone() described value/> }.into_any(),
    };
    view! { <Field label=field.title name=id help=field.help error required>{control}</Field> }
        .into_any()
}
