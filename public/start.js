// Takes over the page once the module is there. Without it everything can still be read and posted.
// A form that was typed in is not drawn over, and one click too many is not a second post.
const typed = (e) => (e.options ? [...e.options].some((o) => o.selected !== o.defaultSelected) : e.type === "checkbox" ? e.checked !== e.defaultChecked : "defaultValue" in e && e.value !== e.defaultValue);
addEventListener("input", ({ target: { form } }) => form?.toggleAttribute("data-typed", [...form.elements].some(typed)));
addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if ("sent" in form.dataset) event.preventDefault();
  form.dataset.sent = "";
  setTimeout(() => delete form.dataset.sent, 5000);
});
addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });
import init, { hydrate } from "/pkg/svcforge.js";
await init({ module_or_path: "/pkg/svcforge_bg.wasm" });
hydrate();
document.documentElement.dataset.hydrated = "true";
await import("/stream.js");
