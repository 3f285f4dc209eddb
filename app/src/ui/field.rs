//! A labelled input with its help and its error beside it.

use leptos::prelude::*;

/// The frame of one input, which must have `name` as its id.
#[component]
pub fn Field(
    /// For people.
    #[prop(into)]
    label: String,
    /// Id of the input.
    #[prop(into)]
    name: String,
    /// One sentence.
    #[prop(into)]
    help: String,
    /// What is wrong.
    error: Option<String>,
    /// Whether it must be given.
    required: bool,
    /// The input.
    children: Children,
) -> impl IntoView {
    let class = if error.is_some() {
        "field wrong"
    } else {
        "field"
    };
    view! {
        <div class=class>
            <label for=name.clone()>{label}{(!required).then(|| view! { <span class="optional">" optional"</span> })}</label>
            {children()}
            <p class="help" id=format!("{name}-help")>{help}</p>
            <p class="error-text" id=format!("{name}-error")>{error}</p>
        </div>
    }
}
