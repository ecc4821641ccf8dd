// The parts that all pages are made of: one table, one form of an action, one notice.
import { html, useEffect, useRef, useState } from "./dom.js";
import { plain } from "./figures.js";
import { t } from "./texts.js";

export const PAGE = 50;
let session = null;

export function act(as) {
  session = as;
}

export function isOperator() {
  return session !== null && session.role === "operator";
}

// Text that a stranger chose.
export function Own({ text }) {
  return html`<bdi>${plain(text)}</bdi>`;
}

export function Badge({ level, text }) {
  return html`<span class="badge ${level}">${text}</span>`;
}

export function Failed({ error }) {
  return error ? html`<div class="notice fail" role="alert">${plain(error.message || error)}</div>` : null;
}

export function Command({ words }) {
  return html`<p class="dim">${t("The same as a command:")} <code>${plain(words)}</code></p>`;
}

// Fetches once, and again when `keys` change: {value, error, again}.
export function useAsked(load, keys) {
  const [state, set] = useState({ value: null, error: null });
  const [round, again] = useState(0);
  useEffect(() => {
    let here = true;
    load().then((value) => here && set({ value, error: null }), (error) => here && set((was) => ({ ...was, error })));
    return () => { here = false; };
  }, [...keys, round]);
  return { ...state, again: () => again((was) => was + 1) };
}

// A table whose rows come from the server, a page at a time. `load({search, sort, offset, limit, after})` returns
// {rows, next} for pages by cursor, with `total` where the server counts all rows, or {rows, total} for offsets.
export function Table({ name, load, columns, search, sorts, sort: first, empty, keys = [], filters }) {
  const [words, setWords] = useState("");
  const [sort, setSort] = useState(first || "");
  const [place, setPlace] = useState({ offset: 0, after: "", before: [] });
  const asked = useAsked(() => load({ search: words, sort, offset: place.offset, after: place.after, limit: PAGE }),
    [words, sort, place.offset, place.after, ...keys]);
  const found = asked.value || { rows: [] };
  const start = () => setPlace({ offset: 0, after: "", before: [] });
  const by = (total) => total !== undefined && total !== null;
  const more = by(found.total) ? place.offset + found.rows.length < found.total : Boolean(found.next);
  const later = useRef(null);
  const typed = (event) => {
    const text = event.target.value;
    clearTimeout(later.current);
    later.current = setTimeout(() => { setWords(text); start(); }, 200);
  };
  const forth = () => setPlace({ offset: place.offset + PAGE, after: found.next || "", before: [...place.before, place.after] });
  const back = () => setPlace({ offset: Math.max(0, place.offset - PAGE), after: place.before.at(-1) || "", before: place.before.slice(0, -1) });
  const shown = found.rows.length;
  return html`<div>
    <div class="row">
      ${search ? html`<input class="fill" type="search" aria-label=${t("Search {name}", { name })} placeholder=${t("Search")} onInput=${typed} />` : null}
      ${filters || null}
      <span class="dim" role="status">${asked.value === null && !asked.error ? t("Loading …")
        : by(found.total) ? t("{first} to {last} of {total}", { first: shown ? place.offset + 1 : 0, last: place.offset + shown, total: found.total })
        : t("{count} shown", { count: shown })}</span>
      <button type="button" disabled=${place.offset === 0} onClick=${back}>${t("Back")}</button>
      <button type="button" disabled=${!more} onClick=${forth}>${t("Next")}</button>
    </div>
    <${Failed} error=${asked.error} />
    ${shown || !asked.value ? html`<div class="scroll" tabindex="0" role="region" aria-label=${name}><table>
      <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.number ? "num" : ""} aria-sort=${sorts && column.key === sort ? (column.number ? "descending" : "ascending") : undefined}>
        ${sorts && sorts.includes(column.key) ? html`<button type="button" onClick=${() => { setSort(column.key); start(); }}>${column.title}${column.key === sort ? " ▾" : ""}</button>` : column.title}</th>`)}</tr></thead>
      <tbody>${found.rows.map((row) => html`<tr>${columns.map((column) => html`<td class=${column.number ? "num" : ""}>${column.show ? column.show(row, asked.again) : plain(row[column.key] ?? "")}</td>`)}</tr>`)}</tbody>
    </table></div>` : html`<p class="empty">${empty}</p>`}
  </div>`;
}

// A button that opens the form of an action. `run(values)` does it and returns what to tell, or a document to show.
export function Action({ title, about, fields = [], run, danger, label, done, strong }) {
  const dialog = useRef(null);
  const [state, set] = useState({ busy: false, error: null, told: null });
  const form = useRef(null);
  const open = () => { form.current.reset(); set({ busy: false, error: null, told: null }); dialog.current.showModal(); };
  const closed = () => {  // what it told is gone: a new key is shown once
    if (state.told !== null && done) done();
    set({ busy: false, error: null, told: null });
  };
  const send = async (event) => {
    event.preventDefault();
    const filled = new FormData(event.target);
    const values = Object.fromEntries(fields.map((field) => [field.name, field.type === "checkbox" ? filled.has(field.name) : String(filled.get(field.name) ?? "")]));
    set({ busy: true, error: null, told: null });
    try {
      const told = await run(values);
      set({ busy: false, error: null, told: told === undefined || told === null ? t("Done.") : told });
    } catch (error) {
      set({ busy: false, error, told: null });
    }
  };
  const named = label || title;
  if (!isOperator()) return html`<button type="button" disabled title=${t("Only an operator may do this.")}>${named}</button>`;
  return html`<span><button type="button" class=${danger ? "danger" : strong ? "strong" : ""} aria-label=${title} onClick=${open}>${named}</button>
    <dialog ref=${dialog} aria-label=${title} onClose=${closed}>
      <form ref=${form} method="dialog" onSubmit=${send}>
        <h2>${title}</h2>
        ${about ? html`<p>${about}</p>` : null}
        ${fields.map((field) => html`<${Field} ...${field} />`)}
        <${Failed} error=${state.error} />
        <div role="status">${state.told !== null ? html`<div class="notice ok">${typeof state.told === "string" ? plain(state.told) : state.told}</div>` : null}</div>
        <div class="row">
          <button type="submit" class=${danger ? "danger" : "strong"} disabled=${state.busy}>${named}</button>
          <button type="button" onClick=${() => dialog.current.close()}>${t("Close")}</button>
        </div>
      </form>
    </dialog></span>`;
}

// A field starts with `value`. It never sets it again: live pages are drawn every second, and what a person types must stay.
export function Field({ name, label, type, value, options, hint, required, autocomplete, pattern }) {
  const common = { name, required, autocomplete, pattern };
  return html`<label class="field"><span>${label}${hint ? html` <em>${hint}</em>` : null}</span>
    ${options ? html`<select ...${common}>${options.map((each) => html`<option value=${each.value ?? each} defaultSelected=${(each.value ?? each) === value}>${each.text ?? each}</option>`)}</select>`
      : type === "textarea" ? html`<textarea ...${common} defaultValue=${value || ""} />`
      : type === "checkbox" ? html`<input type="checkbox" name=${name} defaultChecked=${value} />`
      : html`<input ...${common} type=${type || "text"} defaultValue=${value ?? ""} />`}</label>`;
}

// A form in the page whose words the page uses itself.
export function Ask({ fields, label, submit }) {
  const send = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    submit(Object.fromEntries(fields.map((field) => [field.name, String(form.get(field.name) ?? "").trim()])));
  };
  return html`<form class="row" onSubmit=${send}>
    ${fields.map((field) => html`<input key=${field.value} class="fill" name=${field.name} aria-label=${field.label} placeholder=${field.label} defaultValue=${field.value || ""} required=${field.required} />`)}
    <button type="submit" class="strong">${label}</button></form>`;
}
