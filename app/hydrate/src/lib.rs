//! The browser's entry: takes over the page that the server has drawn.

use wasm_bindgen::prelude::wasm_bindgen;

/// Called by `start.js` once the module is there.
#[wasm_bindgen]
pub fn hydrate() {
    console_error_panic_hook::set_once();
    leptos::mount::hydrate_body(svcforge_app::App);
}
