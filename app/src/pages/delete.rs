//! Removal: what goes, what is lost, and the name typed by hand. A page of its own, so that it works without JavaScript.

use super::FormFlash;
use crate::{
    api,
    ui::{Field, Title, Trouble},
};
use leptos::prelude::*;
use leptos_router::hooks::use_params_map;

/// Asks once more.
#[component]
pub fn DeletePage() -> impl IntoView {
    let params = use_params_map();
    let id = Memo::new(move |_| params.get().get("id").unwrap_or_default());
    let detail = Resource::new(move || id.get(), api::detail);
    let flash = SharedValue::new(|| use_context::<FormFlash>().unwrap_or_default()).into_inner();
    view! {
        <Transition fallback=|| ()>
            {move || {
                let flash = flash.clone();
                Suspend::new(async move {
                    let detail = match detail.await {
                        Err(problem) => return view! { <Trouble problem/> }.into_any(),
                        Ok(detail) => detail,
                    };
                    let i = detail.instance;
                    let (typed, error) = (flash.value("confirm").unwrap_or_default(), flash.error("/confirm"));
                    let back = format!("/services/{}", i.id);
                    let other = flash.problem.as_ref().filter(|p| p.errors.is_empty()).map(|p| view! {
                        <div class="banner bad" role="alert">{p.detail.clone()}</div>
                    });
                    view! {
                        <Title text=format!("Delete {}", i.name)/>
                        <header class="page-head"><h1>{format!("Delete {}", i.name)}</h1></header>
                        <form class="card form danger-zone" method="post" action=format!("/services/{}/delete", i.id) autocomplete="off">
                            {other}
                            <p><strong>{detail.loses}</strong></p>
                            <p>"What goes:"</p>
                            <ul>
                                <li>{format!("release {} in namespace {}", i.release.name, i.release.namespace)}</li>
                                {i.readiness.parts.into_iter().map(|p| view! { <li>{format!("{} {}", p.kind, p.name)}</li> }).collect_view()}
                            </ul>
                            <input type="hidden" name="version" value=i.version.to_string()/>
                            <Field label=format!("Type {} to confirm", i.name) name="confirm" help="" error=error required=true>
                                <input id="confirm" name="confirm" type="text" required=true spellcheck="false" autocapitalize="none" value=typed aria-describedby="confirm-help confirm-error"/>
                            </Field>
                            <div class="actions">
                                <button class="button danger" type="submit" disabled=!detail.may_delete>"Delete"</button>
                                <a class="button" href=back>"Keep it"</a>
                                {(!detail.may_delete).then(|| view! { <span class="sub">"Your role in the team does not allow this."</span> })}
                            </div>
                        </form>
                    }.into_any()
                })
            }}
        </Transition>
    }
}
