//! Changing a service's settings: the form with what is set now, then what would differ, then the change. Drawn on the server; plain
//! posts, the same with and without JavaScript.

use super::{FormFlash, request::Parameter};
use crate::domain::{FormField, catalog::as_text};
use leptos::prelude::*;
use serde_json::{Map, Value};

/// One line of what would differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The setting; for one of many lines, with its key.
    pub of: String,
    /// As it is, if it is there.
    pub before: Option<String>,
    /// As it would be, if it would be there.
    pub after: Option<String>,
}

/// What differs between two sets of parameters, in the order of the form; an object's keys one by one.
pub fn differences(
    fields: &[FormField],
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Vec<Difference> {
    let text = |value: Option<&Value>| value.filter(|v| !v.is_null()).map(as_text);
    let mut all = vec![];
    for field in fields {
        let (before, after) = (old.get(&field.name), new.get(&field.name));
        let empty = Map::new();
        match (before, after) {
            (Some(Value::Object(_)), _) | (_, Some(Value::Object(_))) => {
                let [before, after] =
                    [before, after].map(|v| v.and_then(Value::as_object).unwrap_or(&empty));
                let keys: std::collections::BTreeSet<&String> =
                    before.keys().chain(after.keys()).collect();
                for key in keys {
                    let [before, after] = [before, after].map(|m| text(m.get(key)));
                    if before != after {
                        let of = format!("{} {key}", field.title);
                        all.push(Difference { of, before, after });
                    }
                }
            }
            (before, after) if text(before) != text(after) => all.push(Difference {
                of: field.title.clone(),
                before: text(before),
                after: text(after),
            }),
            _ => {}
        }
    }
    all
}

/// The form.
#[component]
pub fn ChangeForm(
    /// Path of the service.
    path: String,
    /// Its name.
    name: String,
    /// Its version, which the change must meet again.
    version: i64,
    /// Its settings.
    fields: Vec<FormField>,
    /// What is set, or was typed; and what is wrong.
    flash: FormFlash,
) -> impl IntoView {
    let action = format!("{path}/change");
    let problem = flash.problem.as_ref().map(|p| {
        let lead = match p.errors.is_empty() {
            true => p.detail.clone(),
            false => format!("{}: see below.", p.title),
        };
        view! { <div class="banner bad" role="alert">{lead}</div> }
    });
    view! {
        <form class="card form" method="post" action=action autocomplete="off">
            <h2>{name}</h2>
            {problem}
            <input type="hidden" name="version" value=version/>
            {fields.into_iter().map(|field| view! { <Parameter field flash=flash.clone()/> }).collect_view()}
            <div class="actions">
                <button class="button primary" type="submit">"Show what would change"</button>
                <a class="button" href=path>"Back"</a>
            </div>
        </form>
    }
    .into_any()
}

/// What would differ, and the button that does it.
#[component]
pub fn Review(
    /// Path of the service.
    path: String,
    /// Its name.
    name: String,
    /// What would differ.
    differences: Vec<Difference>,
    /// Everything that was typed, to be posted again.
    values: Vec<(String, String)>,
    /// What must be known before.
    warning: Option<&'static str>,
) -> impl IntoView {
    view! {
        <section class="card">
            <h2>{format!("What would change in {name}")}</h2>
            {warning.map(|text| view! { <div class="banner warn" role="alert">{text}</div> })}
            <table class="list diff">
                <thead><tr><th scope="col">"Setting"</th><th scope="col">"Now"</th><th scope="col">"Then"</th></tr></thead>
                <tbody>{differences.into_iter().map(|d| view! {
                    <tr>
                        <td class="main">{d.of}</td>
                        <td data-label="Now">{side(d.before, "del")}</td>
                        <td data-label="Then">{side(d.after, "ins")}</td>
                    </tr>
                }).collect_view()}</tbody>
            </table>
            <form method="post" action=format!("{path}/change")>
                {values.into_iter().map(|(name, value)| view! { <input type="hidden" name=name value=value/> }).collect_view()}
                <div class="actions">
                    <button class="button primary" type="submit" name="confirm" value="yes">"Change it"</button>
                    <button class="button" type="submit" name="edit" value="yes">"Back to the form"</button>
                </div>
            </form>
        </section>
    }
    .into_any()
}

fn side(text: Option<String>, mark: &'static str) -> AnyView {
    let text = text.map(|t| if t.is_empty() { "(empty)".into() } else { t });
    match (text, mark) {
        (None, _) => view! { <span class="sub">"nothing"</span> }.into_any(),
        (Some(text), "del") => view! { <del><code>{text}</code></del> }.into_any(),
        (Some(text), _) => view! { <ins><code>{text}</code></ins> }.into_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::FormWidget;
    use serde_json::json;

    #[test]
    fn only_what_differs_is_shown_keys_one_by_one() {
        let field = |name: &str| FormField {
            name: name.into(),
            title: name.to_uppercase(),
            help: String::new(),
            widget: FormWidget::Text,
            default: String::new(),
            required: false,
            basic: true,
        };
        let fields = [field("image"), field("replicas"), field("env")];
        let map = |v: Value| v.as_object().cloned().unwrap_or_default();
        let old = map(json!({"image": "x:1", "replicas": 1, "env": {"A": "1", "B": "2"}}));
        let new = map(json!({"image": "x:2", "replicas": 1, "env": {"B": "3", "C": ""}}));
        let said: Vec<String> = differences(&fields, &old, &new)
            .into_iter()
            .map(|d| format!("{}: {:?} > {:?}", d.of, d.before, d.after))
            .collect();
        let some = |text: &str| Some(text.to_owned());
        let line =
            |of: &str, before: Option<String>, after| format!("{of}: {before:?} > {after:?}");
        assert_eq!(
            said,
            [
                line("IMAGE", some("x:1"), some("x:2")),
                line("ENV A", some("1"), None),
                line("ENV B", some("2"), some("3")),
                line("ENV C", None, some("")),
            ]
        );
        assert!(differences(&fields, &old, &old).is_empty());
    }
}
