// Clients of the fleet on a map of countries, or of the provinces of one country, with the same figures as a table.
// Marks name places by codes (ISO 3166, GB/T 2260) or by names in English or Chinese. The table also has all others.
import { html, useMemo, useState } from "./dom.js";
import { count } from "./figures.js";
import { Command, Failed, Own, useAsked } from "./parts.js";
import { ask, query } from "./server.js";
import { language, t } from "./texts.js";

const STEPS = 5;
const SHOWN = 10;
const VALUES = 1000;
const TELLING = 200;  // a selector has at most 256 values

const drawn = (name) => fetch(`assets/vendor/maps/${name}.json`).then((found) => { if (!found.ok) throw new Error(t("The map {name} is missing.", { name })); return found.json(); });
const maps = new Map();
const read = (name) => { if (!maps.has(name)) maps.set(name, drawn(name)); return maps.get(name).catch((error) => { maps.delete(name); throw error; }); };
const counted = (by, where) => ask("GET", `api/v1/fleet/counts${query({ by, where, limit: VALUES })}`);

// One form of the many that a name has: no accents, no spaces, no word for the kind of place.
export function bare(name) {
  const text = name.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/\b(province|state|region|prefecture)\b/g, "").replace(/[^\p{L}\p{N}]/gu, "");
  return text.replace(/(?<=..)(省|市|(壮族|回族|维吾尔)?自治区|特别行政区)$/u, "");
}

function countryNames() {
  const names = [["en", "long"], ["zh", "long"], ["en", "short"]].map(([each, style]) => new Intl.DisplayNames(each, { type: "region", fallback: "none", style }));
  return (code) => names.map((each) => each.of(code));
}

// Each place with its name in the language of the page, and the place of each code and name.
function indexed(map, isWorld) {
  const named = countryNames();
  const byName = new Map();
  const places = map.places.map((place) => {
    const [en, zh, less] = isWorld ? named(place.code) : [place.name, place.zh];
    const made = { ...place, name: (language === "zh" && zh) || en || place.code };
    const short = place.code.includes("-") ? [place.code.split("-")[1]] : [];
    for (const each of [place.code, ...short, ...(place.codes || []), en, zh, less]) if (each) byName.set(bare(each), made);
    return made;
  });
  return { ...map, places, find: (value) => byName.get(bare(value)) };
}

const quoted = (value) => `"${value}"`;
const within = (values) => `country in (${values.filter((each) => !each.includes('"')).slice(0, TELLING).map(quoted).join(", ")})`;

// The rows of the table: places with all values that name them, then values that name none.
function grouped(found, map) {
  const rows = new Map();
  for (const [value, clients] of found.values) {
    const place = map.find(value);
    const key = place || value;
    const row = rows.get(key) || { place, values: [], clients: 0 };
    row.values.push(value);
    row.clients += clients;
    rows.set(key, row);
  }
  return [...rows.values()].sort((one, other) => Number(!one.place) - Number(!other.place) || other.clients - one.clients);
}

export function PlaceMap() {
  const [code, open] = useState("");
  const [round, again] = useState(0);
  const world = useAsked(() => read("world"), []);
  const countries = useAsked(() => counted("country", ""), [round]);
  const whole = useMemo(() => world.value && indexed(world.value, true), [world.value, language]);
  const rows = whole && countries.value ? grouped(countries.value, whole) : null;
  const opened = code && rows ? rows.find((each) => each.place && each.place.code === code) : null;
  const values = opened ? opened.values : [code];
  return html`<section><h2>${t("Map of clients")}</h2>
    <div class="row"><select aria-label=${t("Map")} onChange=${(event) => open(event.target.value)}><option value="" selected=${!code}>${t("All countries")}</option>
      ${whole ? whole.places.filter((each) => whole.maps.includes(each.code)).sort((one, other) => one.name.localeCompare(other.name, language)).map((each) => html`<option value=${each.code} selected=${each.code === code}>${each.name}</option>`) : null}</select>
      <button type="button" onClick=${() => again((was) => was + 1)}>${t("Reload")}</button></div>
    <${Failed} error=${world.error || countries.error} />
    ${!rows ? null : code ? html`<${Country} key=${code} code=${code} values=${values} round=${round} name=${whole.places.find((each) => each.code === code).name} />`
      : html`<${Shown} map=${whole} rows=${rows} found=${countries.value} what=${t("country")} open=${(each) => whole.maps.includes(each) && open(each)} opens=${whole.maps} />`}
    <${Command} words=${code ? `muster fleet counts province '${within(values)}'` : "muster fleet counts country"} /></section>`;
}

function Country({ code, values, name, round }) {
  const map = useAsked(() => read(code), [code]);
  const found = useAsked(() => counted("province", within(values)), [values.join("\n"), round]);
  const whole = useMemo(() => map.value && indexed(map.value, false), [map.value, language]);
  return html`<${Failed} error=${map.error || found.error} />
    ${whole && found.value ? html`<${Shown} map=${whole} rows=${grouped(found.value, whole)} found=${found.value} what=${t("province")} name=${name} />` : null}`;
}

function Shown({ map, rows, found, what, name, open, opens = [] }) {
  const known = new Map(rows.filter((each) => each.place).map((each) => [each.place.code || each.place.name, each.clients]));
  const most = Math.max(1, ...known.values());
  // Steps grow by factors: 20,000 clients in one place do not hide ten in another.
  const step = (clients) => Math.max(1, Math.ceil((STEPS * Math.log(1 + clients)) / Math.log(1 + most)));
  const told = rows.filter((each) => each.place).slice(0, SHOWN).map((each) => `${each.place.name} ${count(each.clients)}`).join(", ");
  const elsewhere = rows.filter((each) => !each.place).reduce((sum, each) => sum + each.clients, 0);
  const silent = found.more ? 0 : Math.max(0, found.clients - found.values.reduce((sum, [, clients]) => sum + clients, 0));
  const title = name ? t("Clients by province of {name}", { name }) : t("Clients by country");
  return html`<p role="status">${t("{count} clients", { count: count(found.clients) })}${elsewhere ? `; ${t("{count} in places that the map does not have", { count: count(elsewhere) })}` : ""}${silent ? `; ${t("{count} do not tell their place", { count: count(silent) })}` : ""}${found.more ? `; ${t("{more} more values", found)}` : ""}</p>
    <div class="wide"><div><svg class="map" viewBox=${map.box.join(" ")} role="img" aria-label=${`${title}: ${told || t("none")}`}>
      ${map.places.map((place) => { const clients = known.get(place.code || place.name) || 0; return html`<path d=${place.d} class=${`${clients ? `in-${step(clients)}` : ""} ${opens.includes(place.code) ? "opens" : ""}`} onClick=${open ? () => open(place.code) : undefined}><title>${`${place.name}: ${count(clients)}`}</title></path>`; })}</svg>
      <p class="dim legend">${known.size ? html`1 ${Array.from({ length: STEPS }, (_, at) => html`<svg viewBox="0 0 10 10" aria-hidden="true"><rect class=${`in-${at + 1}`} width="10" height="10" /></svg>`)} ${count(most)}` : t("No client tells this.")}</p></div>
    <div class="tail scroll" tabindex="0" role="region" aria-label=${title}><table><thead><tr><th scope="col">${what}</th><th scope="col">${t("told as")}</th><th scope="col" class="num">${t("clients")}</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr><th scope="row">${row.place ? opens.includes(row.place.code) ? html`<button type="button" class="link" onClick=${() => open(row.place.code)}>${row.place.name}</button>` : row.place.name : html`<span class="dim">${t("not on the map")}</span>`}</th>
        <td class="mono"><${Own} text=${row.values.join(", ")} /></td><td class="num">${count(row.clients)}</td></tr>`)}</tbody></table></div></div>`;
}
