//! A labelled input with its help and its error beside it; text of many lines.

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

/// Text of many lines.
#[component]
pub fn Lines(
    /// Its id and its name.
    id: String,
    /// Ids of what describes it.
    described: String,
    /// Its text.
    value: String,
) -> impl IntoView {
    view! { <textarea id=id.clone() name=id rows="4" spellcheck="false" aria-describedby=described>{content(value)}</textarea> }
}

/// Escaped where the server writes it: tachys does not (`ESCAPE_CHILDREN` of a textarea is false). A first line break is dropped by
/// every browser, so there is one more.
#[cfg(feature = "ssr")]
fn content(value: String) -> String {
    format!("\n{}", html_escape::encode_text(&value))
}

#[cfg(not(feature = "ssr"))]
fn content(value: String) -> String {
    value
}

#[cfg(all(test, feature = "ssr"))]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_textarea_and_means_what_it_says() {
        let value = "</textarea><b>&copy=1\n\"'".to_owned();
        let html = crate::pages::draw(|| {
            let (id, described) = ("a".to_owned(), String::new());
            view! { <Lines id described value/> }
        });
        let (_, rest) = html.split_once('>').unwrap_or_default();
        assert_eq!(
            rest.strip_suffix("</textarea>"),
            Some("\n&lt;/textarea&gt;&lt;b&gt;&amp;copy=1\n\"'")
        );
    }
}
